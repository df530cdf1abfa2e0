"""Saving while training goes on: copies are made at once, and written by a thread."""

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

from sleuth.errors import InputError, TrainingStopped
from sleuth.model.policy import HostBuffers, Policy
from sleuth.runs.atomic import atomic_write
from sleuth.runs.run import Run
from sleuth.train import checkpoint
from sleuth.train.checkpoint import Progress, Snapshot
from sleuth.train.guards import LOWER_RATE
from sleuth.train.optimiser import Optimiser, not_finite
from sleuth.train.ranks import ALONE, TIMEOUT, Ranks


class Saver:
    """Writes checkpoints one after another; each gets its name when it is whole, and then the oldest go.

    Kept are the newest `keep`, the best by held-out score, and those of the steps `always`. What goes wrong in the
    thread is raised by the next call. Every rank makes one, and calls what the others call.
    """

    def __init__(self, run: Run, keep: int, ranks: Ranks = ALONE, always: Iterable[int] = ()) -> None:
        self._run, self._keep, self._always = run, keep, frozenset(always)
        self._rank, self._ranks = ranks.rank, ranks
        # The thread has a group of its own: the trainer's goes on being used meanwhile.
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT) if ranks.world > 1 else None
        self._buffers = HostBuffers()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, policy: Policy, optimiser: Optimiser, progress: Progress, critic: Optimiser | None = None) -> Path:
        """Copies what there is to save, and returns the folder it will be in."""
        self.wait()
        # Whoever still writes is waited for here, where patience is long, and not by the gathering of weights.
        self._ranks.barrier(f"the checkpoint of step {progress.step}")
        taken = checkpoint.snapshot(policy, optimiser, progress, buffers=self._buffers, rank=self._rank, critic=critic)
        # Not a daemon: the interpreter ends only after it.
        self._thread = threading.Thread(target=self._write, args=(taken,), name=f"checkpoint of step {progress.step}")
        self._thread.start()
        return self._run.checkpoint(progress.step)

    def wait(self) -> None:
        """Returns when all that was saved is on the disk."""
        self._join()
        self.check()

    def check(self) -> None:
        """Raises what went wrong until now, and waits for nothing."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._join()
        # An error in flight is the one to tell.
        if error is None:
            self.wait()

    def _write(self, taken: Snapshot) -> None:
        try:
            self._require_finite(taken)
            if self._rank == 0:
                self._lead(taken)
            else:
                self._follow(taken)
        except InputError as error:
            self._error = InputError(f"{error} (continue with: sleuth train --resume {self._run.path})")
        except BaseException as error:  # the next call raises it
            self._error = error

    def _require_finite(self, taken: Snapshot) -> None:
        """Refuses a snapshot that no run could be resumed from, on every rank where one has such a part."""
        every: list[str | None] = [not_finite({**taken.weights, **taken.tensors})]
        if self._group is not None:
            mine, every = every[0], [None] * self._ranks.world
            dist.all_gather_object(every, mine, group=self._group)
        if broken := [name for name in every if name is not None]:
            raise TrainingStopped(
                f"the checkpoint of step {taken.progress.step} is not written, for {broken[0]} holds numbers that are "
                f"not finite; {LOWER_RATE}"
            )

    def _lead(self, taken: Snapshot) -> None:
        progress = taken.progress
        with ExitStack() as open_until_written:
            folder = self._announced(lambda: self._begin(taken, open_until_written))
            checkpoint.write_shards(folder, taken, self._group)
            checkpoint.write_checksums(folder)
        if progress.score is not None:
            self._run.record_score(progress.step, progress.score)
        self._run.prune(self._keep, self._always)

    def _begin(self, taken: Snapshot, open_until_written: ExitStack) -> Path:
        """Writes what one rank writes alone, under a temporary name."""
        final = self._run.checkpoint(taken.progress.step)
        folder = open_until_written.enter_context(atomic_write(final))
        checkpoint.write_weights(folder, taken)
        return folder

    def _announced(self, begin: Callable[[], Path]) -> Path:
        """Tells the other ranks, who wait for it, how the beginning went, and the name of the folder for now."""
        trouble, name = "it broke off", ""
        try:
            folder = begin()
            trouble, name = "", folder.name
        except Exception as error:
            trouble = str(error)
            raise
        finally:
            if self._group is not None:
                dist.broadcast_object_list([trouble, name], src=0, group=self._group)
        return folder

    def _follow(self, taken: Snapshot) -> None:
        final = self._run.checkpoint(taken.progress.step)
        heard = ["", ""]
        dist.broadcast_object_list(heard, src=0, group=self._group)
        trouble, name = heard
        if trouble:
            raise InputError(f"the first rank could not write {final}: {trouble}")
        checkpoint.write_shards(final.with_name(name), taken, self._group)


def save(
    run: Run,
    policy: Policy,
    optimiser: Optimiser,
    progress: Progress,
    keep: int,
    critic: Optimiser | None = None,
) -> Path:
    """Writes one checkpoint of a run in this process, and returns when it is there."""
    with Saver(run, keep) as saver:
        return saver.save(policy, optimiser, progress, critic)
