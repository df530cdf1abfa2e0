"""Trackers: send the metrics of a run to TensorBoard, W&B, MLflow or trackio without ever blocking the run.

Each tracker runs in its own thread; a failed tracker is reported once and dropped. Libraries are imported on use.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, Self
from uuid import uuid4

from sleuth.config.train import TrackConfig
from sleuth.errors import MissingExtra
from sleuth.evaluate.folder import flatten
from sleuth.runs.run import Run
from sleuth.train.observer import RunObserver

FOLDER = "tracking"
FINISH_SECONDS = 90.0  # seconds for a tracker to send its remaining metrics at the end of a run
WANDB_INIT_SECONDS, WANDB_FINISH_SECONDS = 30.0, 60.0
MLFLOW_PARAMS = 100  # per request


class Tracker(Protocol):
    """Sends the metrics of a run to another system; an exception disables the tracker, never the run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a step; after a rollback, earlier steps are logged again."""
        ...

    def close(self) -> None:
        """Send the remaining metrics."""
        ...


@dataclass(frozen=True, slots=True)
class Session:
    """A run as seen by trackers: its project, its settings, and its id in each tracker."""

    run: Run
    project: str

    @property
    def name(self) -> str:
        return self.run.path.name

    def saved_id(self, tracker: str) -> str | None:
        """Return the id that a tracker gave to this run earlier; None if there is none."""
        saved = self.run.read_json(f"{FOLDER}/{tracker}.json")
        return None if saved is None else str(saved["id"])

    def save_id(self, tracker: str, given: str) -> str:
        """Store the id in the run folder, so that a resumed run keeps it; return the id."""
        self.run.write_json(f"{FOLDER}/{tracker}.json", {"id": given})
        return given

    def id_for(self, tracker: str) -> str:
        """Return the saved id, or create and save a new one."""
        return self.saved_id(tracker) or self.save_id(tracker, uuid4().hex[:12])

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run by dotted name."""
        return flatten(self.run.manifest().get("config") or {})


class TensorBoardTracker:
    """Writes event files to the run folder; logging a step again replaces it and all later steps."""

    def __init__(self, session: Session) -> None:
        self._folder = session.run.path / FOLDER / "tensorboard"
        self._writer: Any = None
        self._last = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is None or step <= self._last:
            self.close()
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
        self._last = step

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MlflowTracker:
    """Logs to MLFLOW_TRACKING_URI through the MLflow client, without changing the user's active run."""

    def __init__(self, session: Session) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        self._id = session.saved_id("mlflow") or session.save_id("mlflow", self._create(session))

    def _create(self, session: Session) -> str:
        from mlflow.entities import Param

        found = self._client.get_experiment_by_name(session.project)
        experiment = self._client.create_experiment(session.project) if found is None else found.experiment_id
        created: str = self._client.create_run(experiment, run_name=session.name).info.run_id
        params = [Param(name, str(value)) for name, value in session.settings().items()]
        for first in range(0, len(params), MLFLOW_PARAMS):
            self._client.log_batch(created, params=params[first : first + MLFLOW_PARAMS])
        return created

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in metrics.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)


class TrackioTracker:
    """Logs to trackio under a unique name, because trackio identifies runs by name."""

    def __init__(self, session: Session) -> None:
        import trackio

        with redirect_stdout(sys.stderr):  # stdout is reserved for our own output
            self._run = trackio.init(
                project=session.project,
                name=f"{session.name}-{session.id_for('trackio')}",
                config=session.settings(),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()


class WandbTracker:
    """Logs to W&B with the step as a custom metric, because W&B drops steps that go back after a rollback."""

    def __init__(self, session: Session) -> None:
        import wandb

        # wandb would otherwise prompt for a key and wait.
        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):
            raise ConnectionError("there is no API key: run wandb login, or set WANDB_MODE=offline")
        self._run = wandb.init(
            project=session.project,
            name=session.name,
            id=session.id_for("wandb"),
            resume="allow",
            dir=session.run.path,
            config=session.settings(),
            settings=wandb.Settings(
                silent=True, console="off", init_timeout=WANDB_INIT_SECONDS, finish_timeout=WANDB_FINISH_SECONDS
            ),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Session], Tracker]] = {
    "wandb": WandbTracker,
    "tensorboard": TensorBoardTracker,
    "trackio": TrackioTracker,
    "mlflow": MlflowTracker,
}


class TrackerThread:
    """Opens, feeds and closes a tracker in a thread; `error` is the reason if it failed."""

    def __init__(self, name: str, opener: Callable[[], Tracker]) -> None:
        self.name = name
        self.error: str | None = None
        self._rows: SimpleQueue[tuple[int, dict[str, float]] | None] = SimpleQueue()
        # A daemon: a tracker that hangs must not keep the process alive.
        self._thread = Thread(target=self._work, args=(opener,), name=f"tracker {name}", daemon=True)
        self._thread.start()

    def send(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rows.put((step, dict(metrics)))

    def finish(self, timeout: float) -> None:
        """Wait until everything is sent, at most `timeout` seconds."""
        self._rows.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.error = f"it had not accepted all metrics {timeout:g} s after the end"

    def _work(self, opener: Callable[[], Tracker]) -> None:
        try:
            tracker = opener()
            while (row := self._rows.get()) is not None:
                tracker.log(*row)
            tracker.close()
        except Exception as error:  # libraries and networks raise anything
            self.error = " ".join(str(error).split()) or type(error).__name__


class Trackers:
    """All trackers of a run; a failed tracker is reported once and dropped."""

    def __init__(
        self, threads: Sequence[TrackerThread], observer: RunObserver, timeout: float = FINISH_SECONDS
    ) -> None:
        self._threads = list(threads)
        self._observer = observer
        self._timeout = timeout

    @classmethod
    def build(cls, config: TrackConfig, run: Run, observer: RunObserver, *, enabled: bool = True) -> Self:
        """Start the configured trackers; raises MissingExtra if a library is missing."""
        names = config.trackers if enabled else ()
        for name in names:
            if find_spec(name) is None:
                raise MissingExtra(name, name)
        session = Session(run, config.project)
        return cls([TrackerThread(name, partial(TRACKERS[name], session)) for name in names], observer)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue the metrics of a step."""
        self._drop_failed()
        for thread in self._threads:
            thread.send(step, metrics)

    def close(self) -> None:
        """Send the remaining metrics."""
        for thread in self._threads:
            thread.finish(self._timeout)
        self._drop_failed()
        self._threads.clear()

    def _drop_failed(self) -> None:
        for thread in [each for each in self._threads if each.error is not None]:
            self._observer.log(f"{thread.name} no longer receives metrics: {thread.error}; metrics.jsonl is complete")
            self._threads.remove(thread)
