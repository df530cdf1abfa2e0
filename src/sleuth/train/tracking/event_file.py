"""Metrics as TensorBoard's event files, in the run folder."""

from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from sleuth.train.tracking.session import FOLDER, Session


class TensorBoardTracker:
    """Event files in which a step that comes again, after a resume or a rollback, replaces the steps from there on."""

    def __init__(self, session: Session) -> None:
        self._folder = session.run.path / FOLDER / "tensorboard"
        self._writer: SummaryWriter | None = None
        self._last = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
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
