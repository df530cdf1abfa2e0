"""Recovery: resume from checkpoints, roll back to them, and save when a run is interrupted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sleuth.errors import InputError, Interrupted, TrainingStopped
from sleuth.runs.run import step_of
from sleuth.train import guards
from sleuth.train.checkpoint import Progress
from sleuth.train.guards import Verdict, most_severe
from sleuth.train.manifest import record_resume
from sleuth.train.observer import RunObserver
from sleuth.train.parts import Parts
from sleuth.train.rollout import RolloutSchedule


def newest_checkpoint(parts: Parts) -> Path | None:
    """Return the newest checkpoint that rank 0 finds; None if there is none."""
    every = parts.ranks.gather([parts.run.latest() if parts.is_first_rank else None], "the newest checkpoint")
    return every[0][0]


def prepare_records(parts: Parts, newest: Path | None, observer: RunObserver) -> None:
    """Raise InputError if the records do not match the checkpoint; then record that the run starts or resumes."""
    if newest is not None:
        parts.run.require_complete_metrics(step_of(newest))
        if not parts.verify(newest):
            observer.log(f"{newest} was written by an older version without checksums: it is loaded unverified")
    else:
        recorded = max((row.get("step", 0) for row in parts.run.metrics()), default=0)
        # The first checkpoint is complete before the second one is started.
        if recorded > parts.config.train.save_every:
            raise InputError(
                f"{parts.run.path} has metrics of {recorded} steps but no checkpoint; restore its checkpoints, or "
                "start a new run"
            )
    if parts.is_first_rank:
        step = 0 if newest is None else step_of(newest)
        record_resume(parts.run, parts.config, step, parts.changes, parts.versions)


def restore(parts: Parts, newest: Path | None) -> Progress:
    """Load the checkpoint, or start at step 0; drop later records."""
    if newest is None:
        _rewind(parts, 0, -1)
        return Progress(kl=parts.config.algorithm.kl.coefficient)
    progress = parts.restore(newest)
    _rewind(parts, progress.step, progress.step)
    return progress


def roll_back(
    parts: Parts, rollouts: RolloutSchedule, progress: Progress, verdicts: Sequence[Verdict], observer: RunObserver
) -> Progress:
    """Return to the newest good checkpoint; remove later checkpoints and their records.

    Every rank loads the target before anything is removed. Checkpoints are removed before the rollback is
    recorded: a run killed in between repeats the same step.
    """
    parts.saver.wait()
    rollouts.discard()
    staleness = parts.config.train.max_staleness
    target = guards.last_good(map(step_of, parts.run.checkpoints()), progress.step, staleness)
    # Only rank 0 knows when a checkpoint is complete.
    ((target,), *_) = parts.ranks.gather([target], "the checkpoint to return to")
    folder = parts.run.checkpoint(target)
    if not folder.is_dir():  # later checkpoints are kept
        verdict = most_severe(verdicts)
        raise TrainingStopped(
            f"{verdict.sentence if verdict else 'a guard requested a rollback'}, and the checkpoint to roll back to, "
            f"{folder}, does not exist; restore it and resume the run, or {guards.LOWER_RATE}"
        )
    parts.verify(folder)
    restored = parts.restore(folder)
    parts.ranks.barrier("the rollback")
    if parts.is_first_rank:
        parts.run.remove_checkpoints_after(target)
    parts.record_verdicts(progress.step, verdicts, observer)
    _rewind(parts, target, target)
    restored = replace(restored, seconds=progress.seconds)
    rollouts.restore(restored)
    return restored


def _rewind(parts: Parts, step: int, recorded: int) -> None:
    """Drop the records after step `recorded` and publish the weights of `step`."""
    if parts.is_first_rank:
        parts.run.rewind(recorded)
    parts.ranks.barrier(f"the state of step {step}")
    parts.publisher.publish(step)


@contextmanager
def save_on_interrupt(parts: Parts, progress: Progress) -> Iterator[None]:
    """Save the last finished step if the rollouts of the next one are interrupted."""
    try:
        yield
    except Interrupted:
        parts.saver.wait()
        saved = parts.run.checkpoint(progress.step).is_dir()
        ((saved,), *_) = parts.ranks.gather([saved], "whether the step is saved")
        # An existing checkpoint is not replaced: a kill in between would lose it.
        if not saved:
            parts.save(progress)
            parts.saver.wait()
        raise
