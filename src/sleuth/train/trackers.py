"""Trackers: the metrics of a run go to others too, and whatever happens there, the run goes on.

Each tracker works in a thread of its own, so that a server that does not answer keeps nobody waiting.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from queue import SimpleQueue
from threading import Thread
from typing import Self

from sleuth.config.train import TrackConfig
from sleuth.errors import MissingExtra
from sleuth.runs.run import Run
from sleuth.train.observer import RunObserver
from sleuth.train.tracking.session import Session, Tracker

PATIENCE = 90.0  # seconds that a tracker may take to send what is left when a run ends

Open = Callable[[Session], Tracker]
Row = tuple[int, dict[str, float]]


class Courier:
    """Carries rows to a tracker that is opened, used and closed in a thread of its own; `fault` says why it ended."""

    def __init__(self, name: str, opening: Callable[[], Tracker]) -> None:
        self.name = name
        self.fault: str | None = None
        self._rows: SimpleQueue[Row | None] = SimpleQueue()
        # A daemon: a tracker that hangs does not keep the process from ending.
        self._thread = Thread(target=self._work, args=(opening,), name=f"tracker {name}", daemon=True)
        self._thread.start()

    def send(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rows.put((step, dict(metrics)))

    def finish(self, patience: float) -> None:
        """Waits until everything is delivered, but not longer than `patience` seconds."""
        self._rows.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            self.fault = f"it had not taken everything {patience:g} s after the end"

    def _work(self, opening: Callable[[], Tracker]) -> None:
        try:
            tracker = opening()
            while (row := self._rows.get()) is not None:
                tracker.log(*row)
            tracker.close()
        except Exception as error:  # libraries and networks fail in ways of their own
            self.fault = " ".join(str(error).split()) or type(error).__name__


class Trackers:
    """All trackers of a run; one that fails is told of once, and dropped."""

    def __init__(self, couriers: Sequence[Courier], observer: RunObserver, patience: float = PATIENCE) -> None:
        self._couriers = list(couriers)
        self._watch = observer
        self._patience = patience

    @classmethod
    def of(cls, config: TrackConfig, run: Run, observer: RunObserver) -> Self:
        """The trackers asked for; a library that is not installed is told before anything begins."""
        for name in config.trackers:
            if find_spec(name) is None:
                raise MissingExtra(name, name)
        session = Session(run, config.project)
        return cls([Courier(name, partial(OPEN[name], session)) for name in config.trackers], observer)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends the metrics of a step on their way."""
        self._drop_failed()
        for courier in self._couriers:
            courier.send(step, metrics)

    def close(self) -> None:
        """Delivers what is left."""
        for courier in self._couriers:
            courier.finish(self._patience)
        self._drop_failed()
        self._couriers.clear()

    def _drop_failed(self) -> None:
        for courier in [each for each in self._couriers if each.fault is not None]:
            self._watch.log(f"{courier.name} is no longer told of this run: {courier.fault}; metrics.jsonl has it all")
            self._couriers.remove(courier)


def _wandb(session: Session) -> Tracker:
    from sleuth.train.tracking.weights_and_biases import WandbTracker

    return WandbTracker(session)


def _tensorboard(session: Session) -> Tracker:
    from sleuth.train.tracking.event_file import TensorBoardTracker

    return TensorBoardTracker(session)


def _trackio(session: Session) -> Tracker:
    from sleuth.train.tracking.trackio_run import TrackioTracker

    return TrackioTracker(session)


def _mlflow(session: Session) -> Tracker:
    from sleuth.train.tracking.mlflow_run import MlflowTracker

    return MlflowTracker(session)


OPEN: dict[str, Open] = {"wandb": _wandb, "tensorboard": _tensorboard, "trackio": _trackio, "mlflow": _mlflow}
