"""Saving while training continues: the state is copied at once and written by a thread."""

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import torch.distributed as dist

from sleuth.errors import InputError, TrainingStopped
from sleuth.model.policy import HostBuffers, Policy
from sleuth.runs.atomic import atomic_write
from sleuth.runs.run import Run
from sleuth.train import checkpoint
from sleuth.train.checkpoint import Progress, Snapshot
from sleuth.train.guards import LOWER_RATE
from sleuth.train.optimiser import Optimiser, find_non_finite
from sleuth.train.ranks import ALONE, TIMEOUT, Ranks


class Saver:
    """Writes checkpoints one after another; each is renamed when complete, and then old ones are removed.

    Keeps the newest `keep`, the best by held-out score, and the steps in `always`. Errors of the thread are raised by
    the next call. Every method is collective.
    """

    def __init__(self, run: Run, keep: int, ranks: Ranks = ALONE, always: Iterable[int] = ()) -> None:
        self._run, self._keep, self._always = run, keep, frozenset(always)
        self._ranks = ranks
        # The thread needs its own group, because the trainer uses the other one at the same time.
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT) if ranks.world > 1 else None
        self._buffers = HostBuffers()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, policy: Policy, optimiser: Optimiser, progress: Progress, critic: Optimiser | None = None) -> Path:
        """Copy the state, start to write it, and return the folder it will be in."""
        self.wait()
        # A rank that still writes is awaited here, where the timeout is long, and not while weights are gathered.
        self._ranks.barrier(f"the checkpoint of step {progress.step}")
        state = checkpoint.snapshot(
            policy, optimiser, progress, buffers=self._buffers, rank=self._ranks.rank, critic=critic
        )
        # Not a daemon: the interpreter waits for it.
        self._thread = threading.Thread(target=self._write, args=(state,), name=f"checkpoint of step {progress.step}")
        self._thread.start()
        return self._run.checkpoint(progress.step)

    def wait(self) -> None:
        """Wait until all checkpoints are on disk."""
        self._join()
        self.check()

    def check(self) -> None:
        """Raise an error of the thread, without waiting."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._join()
        if kind is None:  # an error in flight takes precedence
            self.check()

    def _write(self, state: Snapshot) -> None:
        try:
            self._require_finite(state)
            if self._ranks.rank == 0:
                self._write_first(state)
            else:
                self._write_other(state)
        except InputError as error:
            self._error = InputError(f"{error} (continue with: sleuth train --resume {self._run.path})")
        except BaseException as error:  # raised by the next call
            self._error = error

    def _require_finite(self, state: Snapshot) -> None:
        """Refuse a snapshot with NaN or infinity on every rank, because no run could be resumed from it."""
        every: list[str | None] = [find_non_finite({**state.weights, **state.tensors})]
        if self._group is not None:
            mine, every = every[0], [None] * self._ranks.world
            dist.all_gather_object(every, mine, group=self._group)
        if broken := [name for name in every if name is not None]:
            raise TrainingStopped(
                f"the checkpoint of step {state.progress.step} is not written, because {broken[0]} has values that "
                f"are not finite; {LOWER_RATE}"
            )

    def _write_first(self, state: Snapshot) -> None:
        """Write the weights, announce the temporary folder to the other ranks, add the shards, and rename it."""
        progress = state.progress
        with ExitStack() as stack:
            error, name = "it was interrupted", ""
            try:
                folder = stack.enter_context(atomic_write(self._run.checkpoint(progress.step)))
                checkpoint.write_weights(folder, state)
                error, name = "", folder.name
            except Exception as failure:
                error = str(failure)
                raise
            finally:
                if self._group is not None:
                    dist.broadcast_object_list([error, name], src=0, group=self._group)
            checkpoint.write_shards(folder, state, self._group)
            checkpoint.write_checksums(folder)
        if progress.score is not None:
            self._run.record_score(progress.step, progress.score)
        self._run.prune(self._keep, self._always)

    def _write_other(self, state: Snapshot) -> None:
        """Add the shards of this rank to the folder that rank 0 announces."""
        final = self._run.checkpoint(state.progress.step)
        announced = ["", ""]
        dist.broadcast_object_list(announced, src=0, group=self._group)
        error, name = announced
        if error:
            raise InputError(f"rank 0 could not write {final}: {error}")
        checkpoint.write_shards(final.with_name(name), state, self._group)


def save(
    run: Run,
    policy: Policy,
    optimiser: Optimiser,
    progress: Progress,
    keep: int,
    critic: Optimiser | None = None,
) -> Path:
    """Write one checkpoint and wait for it."""
    with Saver(run, keep) as saver:
        return saver.save(policy, optimiser, progress, critic)
