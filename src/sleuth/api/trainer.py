"""Training in Python: a recipe with changed settings and your own functions, started or resumed in this process."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sleuth.api.agent import Settings, setting_lines
from sleuth.api.console import quiet_transformers, stderr_console
from sleuth.api.progress import TrainingProgress, format_metrics
from sleuth.api.run import Run
from sleuth.config import hooks, recipe
from sleuth.config.tree import Config
from sleuth.errors import Interrupted
from sleuth.retrieval.backends import start_daemon_thread
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.run import Run as RunFolder
from sleuth.runs.run import next_run_path, step_of
from sleuth.train.observer import RunObserver, SilentObserver
from sleuth.train.ranks import join_ranks
from sleuth.train.session import train_session

RUNS = Path("runs")
LOG = logging.getLogger("sleuth")

Function = Callable[..., Any]
OnStep = Callable[[int, Mapping[str, float]], None]  # receives the number and the metrics of each finished step
Result = TypeVar("Result")


class Trainer:
    """A training run that is not started yet.

    `recipe` is the name of a shipped recipe or a TOML file; without one, `settings` has everything. `reward` is a
    metric or a function of question and trajectory, `tools` are functions that the model may call besides those of the
    recipe, `agent` is a function that plays the episodes through an endpoint. `settings` are like
    {"train.steps": 2}, {"train": {"steps": 2}} or ["train.steps=2"]. `folder` is the new run folder; default:
    runs/NAME-N.
    """

    def __init__(
        self,
        recipe: str | Path | None = None,
        *,
        model: str | Path | None = None,
        reward: str | Function | None = None,
        tools: Sequence[str | Function] = (),
        agent: str | Function | None = None,
        settings: Settings = (),
        folder: str | Path | None = None,
    ) -> None:
        self._recipe = None if recipe is None else str(recipe)
        self._model, self._reward, self._tools, self._agent = model, reward, tuple(tools), agent
        self._settings, self._folder = settings, folder
        if recipe is not None or settings:
            _ = self.config  # raises ConfigError now

    @cached_property
    def config(self) -> Config:
        """All settings of the run."""
        functions = {"model.policy": self._model, "reward.answer": self._reward, "agent.run": self._agent}
        lines = setting_lines(self._settings)
        lines += recipe.overrides({name: value for name, value in functions.items() if value is not None})
        config = self._compose(lines)
        if self._tools:
            config = self._compose([*lines, *recipe.overrides({"agent.tools": [*config.agent.tools, *self._tools]})])
        return config

    def train(self, on_step: OnStep | None = None) -> Run:
        """Train to the last step in a new run folder; `on_step` is called after each step.

        Ctrl-C saves a checkpoint and raises KeyboardInterrupt. Raises TrainingStopped if a guard stops the run.
        """
        folder = next_run_path(RUNS, self.config.name) if self._folder is None else Path(self._folder)
        return _train_here(self.config, folder, (), on_step)

    def resume(self, run: str | Path | Run, *, settings: Settings = (), on_step: OnStep | None = None) -> Run:
        """Continue a run from its newest checkpoint, with the settings of the run and the given changes.

        Functions that only the process of the run knew are replaced by those of this trainer.
        """
        begun = RunFolder.open(run.path if isinstance(run, Run) else Path(run))
        self._bind_functions(begun)
        return _train_here(begun, begun.path, setting_lines(settings), on_step)

    def _compose(self, lines: Sequence[str]) -> Config:
        return recipe.compose({}, lines) if self._recipe is None else recipe.load(self._recipe, lines)

    def _bind_functions(self, run: RunFolder) -> None:
        tree, _ = run.config_and_inputs()
        tools = [spec for spec in tree["agent"]["tools"] if hooks.is_registered(spec)]
        specs = [(tree["reward"]["answer"], self._reward), (tree["agent"].get("run"), self._agent)]
        for spec, function in [*specs, *zip(tools, filter(callable, self._tools), strict=False)]:
            if callable(function) and spec is not None and hooks.is_registered(spec):
                hooks.bind(spec, function)


def train_in_process(
    begun: RunFolder | Config, folder: Path, observer: RunObserver, changes: Sequence[str], started: float
) -> tuple[Path, Mapping[str, Any] | None]:
    """Start or resume a run; this process may be one of several ranks.

    Returns the folder, and on the first rank the summary. `started` is the `time.monotonic` start of the command.
    """
    return train_session(begun, folder, observer, changes, started, join_ranks())


def describe_interrupted(folder: Path) -> str | None:
    """Say how far an interrupted run came; None if there is nothing to resume."""
    if not (folder / "manifest.json").exists():
        return None
    saved = RunFolder(folder).latest()
    return "interrupted " + ("before its first checkpoint" if saved is None else f"after step {step_of(saved)}")


def _train_here(begun: RunFolder | Config, folder: Path, changes: Sequence[str], on_step: OnStep | None) -> Run:
    started = time.monotonic()
    with quiet_transformers(), _progress() as progress, INTERRUPTION.handle_signals(second_exits=False):
        observer = progress if on_step is None else StepCallback(progress, on_step)
        try:
            path, _ = _outside_event_loop(lambda: train_in_process(begun, folder, observer, changes, started))
        except Interrupted as interrupted:
            if interrupted.signal != signal.SIGINT:
                raise
            line = describe_interrupted(folder)
            remedy = [f"{line}; continue with: sleuth.Trainer().resume({str(folder)!r})"] if line else []
            raise KeyboardInterrupt(*remedy) from None
    return Run(path)


def _outside_event_loop(work: Callable[[], Result]) -> Result:
    """Call a function that runs its own event loops; where a loop is running, as in a notebook, in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with INTERRUPTION.defer():
        result: Result = start_daemon_thread(work, "training").result()
        return result


@contextmanager
def _progress() -> Iterator[RunObserver]:
    """Progress bars on a terminal, otherwise messages of the logger `sleuth`."""
    console = stderr_console()
    if console.is_terminal:
        with TrainingProgress(console) as bars:
            yield bars
    else:
        yield LoggedProgress()


class LoggedProgress(SilentObserver):
    """RunObserver that sends stages, steps and messages to the logger `sleuth`, at level INFO."""

    def begin(self, stage: str, total: int) -> None:  # noqa: ARG002
        LOG.info(stage)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        LOG.info("step %d: %s", step, format_metrics(metrics))

    def log(self, line: str) -> None:
        LOG.info(line)


@dataclass(frozen=True, slots=True)
class StepCallback:
    """RunObserver that also calls a function after each step."""

    inner: RunObserver
    on_step: OnStep

    def begin(self, stage: str, total: int) -> None:
        self.inner.begin(stage, total)

    def advance(self, parts: int = 1) -> None:
        self.inner.advance(parts)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.inner.step(step, metrics)
        self.on_step(step, metrics)

    def log(self, line: str) -> None:
        self.inner.log(line)
