"""Checkpoints of supervised training: after a kill, the same command continues from the newest."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from sleuth.model.policy import HostBuffers
from sleuth.runs import checksums
from sleuth.runs.atomic import atomic_write
from sleuth.runs.run import Run, step_of
from sleuth.sft.step import Learner
from sleuth.train import checkpoint
from sleuth.train.checkpoint import Progress

COURSE = "course.json"
CHECKPOINTS = "checkpoints"


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of one training, in the folder of its unfinished model; one is due every `minutes`."""

    folder: Path
    minutes: float
    _saved: float = field(default_factory=time.monotonic)

    @property
    def due(self) -> bool:
        return time.monotonic() - self._saved >= 60 * self.minutes

    def save(
        self, learner: Learner, course: Mapping[str, Any], step: int, best_step: int, weights: Mapping[str, Tensor]
    ) -> None:
        """Saves the state after `step` updates, and the weights of the step with the lowest held-out loss."""
        run = Run(self.folder)
        # Before the checkpoint, which takes its name last: whatever it needs is there.
        run.write_json(COURSE, course)
        if weights and not self._best(best_step).exists():
            with atomic_write(self._best(best_step)) as path:
                save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path)
        taken = checkpoint.snapshot(learner.policy, learner.optimiser, Progress(step), buffers=HostBuffers())
        with atomic_write(run.checkpoint(step)) as folder:
            checkpoint.write_weights(folder, taken)
            checkpoint.write_shards(folder, taken, None)
            checkpoint.write_checksums(folder)
        run.prune(keep=1)
        for path in self.folder.glob("best-*.safetensors"):
            if path != self._best(best_step):
                path.unlink()
        self._saved = time.monotonic()

    def restore(self, learner: Learner) -> tuple[int, Mapping[str, Any]] | None:
        """Puts the newest checkpoint in place: its step and the course up to at least there; None without one."""
        run = Run(self.folder)
        newest = run.latest() if (self.folder / CHECKPOINTS).is_dir() else None
        course = run.read_json(COURSE)
        if newest is None or course is None:
            return None
        checksums.verify_checkpoint(newest, resuming=True)
        checkpoint.restore(newest, learner.policy, learner.optimiser)
        return step_of(newest), course

    def best(self, step: int) -> dict[str, Tensor]:
        """The weights with the lowest held-out loss; none where none were kept."""
        path = self._best(step)
        return load_file(path) if path.exists() else {}

    def remove(self) -> None:
        """Removes them from the folder, which then holds a model and nothing else."""
        shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)
        for path in (self.folder / COURSE, *self.folder.glob("best-*.safetensors")):
            path.unlink(missing_ok=True)

    def _best(self, step: int) -> Path:
        return self.folder / f"best-{step}.safetensors"
