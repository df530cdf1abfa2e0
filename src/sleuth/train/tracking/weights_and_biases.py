"""Metrics to Weights & Biases; online or offline as its own settings (WANDB_MODE, wandb login) say."""

from collections.abc import Mapping

import wandb

from sleuth.train.tracking.session import Session

NAME = "wandb"
START, END = 30.0, 60.0  # seconds that its server may take at most


class WandbTracker:
    """A W&B run whose steps are a metric of their own: W&B drops rows that step backwards, as after a rollback."""

    def __init__(self, session: Session) -> None:
        # Its own question for a key would wait for an answer that nobody is there to give.
        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):
            raise ConnectionError("there is no API key: run wandb login, or set WANDB_MODE=offline")
        self._run = wandb.init(
            project=session.project,
            name=session.name,
            id=session.id_for(NAME),
            resume="allow",
            dir=session.run.path,
            config=session.settings(),
            settings=wandb.Settings(silent=True, console="off", init_timeout=START, finish_timeout=END),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        self._run.finish()
