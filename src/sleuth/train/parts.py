"""The components of a training run; only rank 0 writes its records."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sleuth.agent import methods, protocol
from sleuth.agent.episode import Agent
from sleuth.agent.loading import require_search
from sleuth.agent.tools import load_tools
from sleuth.agent.written_answer import AnswerWriter
from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.engines.base import Engine
from sleuth.errors import InputError, UserError
from sleuth.gateway.outside import OutsideAgent, check_agent, running
from sleuth.model.policy import select_device
from sleuth.records import Question
from sleuth.reward.rubric import Rubric
from sleuth.runs import checksums
from sleuth.runs.run import Run
from sleuth.runs.trajectory import trajectory_row
from sleuth.train import checkpoint
from sleuth.train.backend import LOCAL, RolloutBackend
from sleuth.train.checkpoint import Progress, Saver
from sleuth.train.curriculum import Curriculum
from sleuth.train.data import QuestionStream, load_questions, prepare_sources
from sleuth.train.guards import Verdict
from sleuth.train.information_gain import InformationGain
from sleuth.train.manifest import changed_versions, create_run, require_same_inputs
from sleuth.train.metrics import finite_only
from sleuth.train.observer import RunObserver
from sleuth.train.plan import require_fits
from sleuth.train.publish import Publisher
from sleuth.train.ranks import ALONE, Ranks
from sleuth.train.rollout import RolloutBatch, RolloutSampler
from sleuth.train.step import Learner
from sleuth.train.trackers import Trackers


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything the training loop needs; `changes` and `versions` are set for a resumed run."""

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
    concurrency: int | None = None  # episodes in flight; default: that of the config
    rollout_metrics: Callable[[int], Mapping[str, float]] = lambda _: {}  # of a step; collective

    @property
    def agent(self) -> Agent | OutsideAgent:
        return self.sampler.agent

    @property
    def ranks(self) -> Ranks:
        return self.learner.ranks

    @property
    def is_first_rank(self) -> bool:
        return self.ranks.rank == 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the run folder and start the gateway, if any; on exit, wait until all checkpoints are written."""
        lock = self.run.lock() if self.is_first_rank else nullcontext()
        with lock, self.saver, closing(self.trackers), running(self.agent):
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
                # Written first, so that a reader who finds the trajectories also finds their token log.
                self.run.write_token_log(step, [logged.get(id(each), {}) for each in batch.trajectories])
            self.run.write_trajectories(step, (trajectory_row(each, score) for each, score in batch.scored()))
            if (curriculum := self.sampler.stream.curriculum) is not None:
                curriculum.record(step, batch.groups)

    def record_verdicts(self, step: int, verdicts: Sequence[Verdict], observer: RunObserver) -> None:
        for verdict in verdicts:
            observer.log(verdict.line(step))
            if self.is_first_rank:
                self.run.append_event(step, verdict.event())

    def save(self, progress: Progress) -> None:
        """Start writing a checkpoint in the background."""
        learner = self.learner
        with learner.timer.time("save"):
            self.saver.save(learner.policy, learner.optimiser, progress, learner.critic_optimiser)

    def verify(self, folder: Path) -> bool:
        """Verify a checkpoint; raise InputError on every rank if it is damaged, return False if it has no checksums."""
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


def start_run(
    config: Config, folder: Path, observer: RunObserver, ranks: Ranks = ALONE, backend: RolloutBackend = LOCAL
) -> Parts:
    """Create a run and build its parts; on a user error, remove the run folder."""
    config = recipe.with_absolute_paths(config)
    run = create_run(config, folder) if ranks.rank == 0 else Run(folder)
    ranks.barrier("the run folder")
    try:
        return assemble(config, run, observer, ranks, backend)
    except UserError:
        if ranks.rank == 0:
            shutil.rmtree(run.path)
        raise


def resume_run(
    run: Run,
    observer: RunObserver,
    changes: Sequence[str] = (),
    ranks: Ranks = ALONE,
    backend: RolloutBackend = LOCAL,
) -> Parts:
    """Build the parts of an interrupted run with its changed settings; raises InputError if its inputs have changed."""
    config = recipe.amend(run.config_and_inputs()[0], changes)
    require_same_inputs(run, config)
    parts = replace(assemble(config, run, observer, ranks, backend), changes=tuple(changes))
    if changed := changed_versions(run, config):
        versions, notice = changed
        observer.log(notice)
        parts = replace(parts, versions=versions)
    return parts


def assemble(
    config: Config, run: Run, observer: RunObserver, ranks: Ranks = ALONE, backend: RolloutBackend = LOCAL
) -> Parts:
    """Build every part, cheap checks first."""
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    rubric = Rubric(config.reward)
    methods.make_method(config.agent)
    check_agent(config.agent)
    tools = load_tools(config.agent)
    require_search(config)
    if warning := require_fits(config, select_device(ranks.rank), ranks.world):
        observer.log(warning)
    learner = Learner.build(config, ranks)
    tokens = learner.policy.tokens
    grammar = protocol.make_protocol(config.agent.protocol, tokens, tools)
    if config.algorithm.information_gain.coefficient:
        gain = InformationGain(config.algorithm.information_gain, AnswerWriter(grammar, tokens))
        learner = replace(learner, information_gain=gain)
    sources = prepare_sources(config, run, observer, ranks)
    files, held_out = load_questions(config, sources, observer)
    training = [question for file in files for question in file]
    rollouts = backend.connect(config, learner, run, sources.index, tools, observer)
    agent = rollouts.agent
    if isinstance(agent, OutsideAgent):
        observer.log(f"{config.agent.source} calls the policy at {agent.gateway.url}")
    else:
        _check_prompts(agent, training, held_out, observer)
    curriculum = Curriculum(run.path, training, config.train) if config.train.curriculum != "none" else None
    if curriculum is not None and (drawn := config.train.steps * config.train.questions) <= len(training):
        observer.log(
            f"train.curriculum orders the second epoch, but {drawn:,} questions in train.steps = {config.train.steps} "
            f"do not reach it: there are {len(training):,}"
        )
    stream = QuestionStream.of(config, files, curriculum)
    rollout_ranks = ranks.for_thread() if config.train.mode == "ahead" else ranks
    return Parts(
        config=config,
        run=run,
        learner=learner,
        engine=rollouts.engine,
        publisher=rollouts.publisher,
        sampler=RolloutSampler(agent, rubric, stream, config, rollout_ranks, rollouts.episodes),
        held_out=held_out,
        saver=Saver(run, config.train.keep, ranks, always=(0,)),  # step 0 is the last rollback target
        trackers=Trackers.build(config.track, run, observer, enabled=ranks.rank == 0),
        concurrency=rollouts.concurrency,
        rollout_metrics=rollouts.metrics,
    )


def _check_prompts(
    agent: Agent, training: Sequence[Question], held_out: Sequence[Question], observer: RunObserver
) -> None:
    methods.require_prompts(agent, [*training, *held_out])
    for kind, questions in (("training questions", training), ("held-out questions", held_out)):
        if warning := methods.describe_overlong(agent, questions, kind):
            observer.log(warning)
