"""The parts of a training run, and its records, which only rank 0 writes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sleuth.agent.episode import Agent
from sleuth.config.tree import Config
from sleuth.engines.base import Engine
from sleuth.errors import InputError
from sleuth.records import Question
from sleuth.reward.rubric import Rubric
from sleuth.runs import checksums
from sleuth.runs.run import Run
from sleuth.runs.trajectory import trajectory_row
from sleuth.train import checkpoint
from sleuth.train.checkpoint import Progress
from sleuth.train.guards import Verdict
from sleuth.train.metrics import finite_only
from sleuth.train.observer import RunObserver
from sleuth.train.publish import Publisher
from sleuth.train.ranks import Ranks
from sleuth.train.rollout import RolloutBatch, RolloutSampler
from sleuth.train.saver import Saver
from sleuth.train.step import Learner
from sleuth.train.trackers import Trackers


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything the training loop needs; `changes` and `versions` are those of a resumed run."""

    config: Config
    run: Run
    learner: Learner
    engine: Engine
    publisher: Publisher
    sampler: RolloutSampler
    held_out: list[Question]
    saver: Saver
    trackers: Trackers
    changes: tuple[str, ...] = ()
    versions: Mapping[str, Any] | None = None

    @property
    def agent(self) -> Agent:
        return self.sampler.agent

    @property
    def rubric(self) -> Rubric:
        return self.sampler.rubric

    @property
    def ranks(self) -> Ranks:
        return self.learner.ranks

    @property
    def is_first_rank(self) -> bool:
        return self.ranks.rank == 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the run folder; on exit, wait until checkpoints and trackers are written."""
        with self.run.lock() if self.is_first_rank else nullcontext(), self.saver, closing(self.trackers):
            yield

    def record_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.is_first_rank:
            finite = finite_only(metrics)
            self.run.append_metrics(step, finite)
            self.trackers.log(step, finite)

    def record_rollouts(self, step: int, batch: RolloutBatch) -> None:
        """Write the trajectories of a step with their token log."""
        logged = self.learner.token_log.collect()
        if self.is_first_rank:
            if logged:
                # First: a reader who sees the trajectories of a step also finds their token log.
                self.run.write_token_log(step, [logged.get(id(each), {}) for each in batch.trajectories])
            self.run.write_trajectories(step, (trajectory_row(each, score) for each, score in batch.scored()))

    def record_verdicts(self, step: int, verdicts: Sequence[Verdict], observer: RunObserver) -> None:
        for verdict in verdicts:
            observer.log(verdict.line(step))
            if self.is_first_rank:
                self.run.append_event(step, verdict.event())

    def save(self, progress: Progress) -> None:
        """Start to write a checkpoint in the background."""
        learner = self.learner
        with learner.timer.time("save"):
            self.saver.save(learner.policy, learner.optimiser, progress, learner.critic_optimiser)

    def verify(self, folder: Path) -> bool:
        """Verify a checkpoint on rank 0 and refuse a damaged one on every rank; False if it has no checksums."""
        result: bool | str = True
        if self.is_first_rank:
            try:
                result = checksums.verify_checkpoint(folder, resuming=True)
            except InputError as error:
                result = str(error)
        ((result,), *_) = self.ranks.gather([result], "the checksums of a checkpoint")
        if isinstance(result, str):
            raise InputError(result)
        return result

    def restore(self, folder: Path) -> Progress:
        """Load weights, optimisers and random states from a checkpoint."""
        learner = self.learner
        return checkpoint.restore(
            folder, learner.policy, learner.optimiser, rank=self.ranks.rank, critic=learner.critic_optimiser
        )
