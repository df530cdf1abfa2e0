"""Builds the parts of a run from its config."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from sleuth.agent import methods, protocol
from sleuth.agent.loading import SEARCHES, build_agent, require_search
from sleuth.agent.user_tools import load_tools
from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.engines.build import Lockstep
from sleuth.errors import UserError
from sleuth.reward.rubric import Rubric
from sleuth.runs.run import Run
from sleuth.train.data import QuestionStream, load_questions, prepare_sources
from sleuth.train.manifest import changed_versions, create_run, require_same_inputs
from sleuth.train.observer import RunObserver
from sleuth.train.parts import Parts
from sleuth.train.publish import build_engine
from sleuth.train.ranks import ALONE, Ranks
from sleuth.train.rollout import RolloutSampler
from sleuth.train.saver import Saver
from sleuth.train.step import Learner
from sleuth.train.trackers import Trackers


def start_run(config: Config, folder: Path, observer: RunObserver, ranks: Ranks = ALONE) -> Parts:
    """Create a run and build its parts; a user error removes the folder again."""
    config = recipe.with_absolute_paths(config)
    run = create_run(config, folder) if ranks.rank == 0 else Run(folder)
    ranks.barrier("the run folder")
    try:
        return assemble(config, run, observer, ranks)
    except UserError:
        if ranks.rank == 0:
            shutil.rmtree(run.path)
        raise


def resume_run(run: Run, observer: RunObserver, changes: Sequence[str] = (), ranks: Ranks = ALONE) -> Parts:
    """Build the parts of an interrupted run with changed settings; its inputs must be unchanged."""
    config = recipe.amend(run.config_and_inputs()[0], changes)
    require_same_inputs(run, config)
    parts = replace(assemble(config, run, observer, ranks), changes=tuple(changes))
    changed = changed_versions(run, config)
    if changed is None:
        return parts
    versions, notice = changed
    observer.log(notice)
    return replace(parts, versions=versions)


def assemble(config: Config, run: Run, observer: RunObserver, ranks: Ranks = ALONE) -> Parts:
    """Build every part, cheap checks first."""
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    rubric = Rubric(config.reward)
    methods.make_method(config.agent)
    require_search(config)
    learner = Learner.build(config, ranks)
    tokens = learner.policy.tokens
    protocol.make_protocol(config.agent.protocol, tokens, load_tools(config.agent))
    sources = prepare_sources(config, run, observer, ranks)
    training, held_out = load_questions(config, sources, observer)
    engine, publisher = build_engine(config, learner, run.path)
    observer.log(Lockstep.resolve(config, learner.policy.device.type).line(config.concurrency))
    agent = build_agent(config, engine, tokens, sources.index, run.path / SEARCHES)
    methods.require_prompts(agent, [*training, *held_out])
    for kind, questions in (("training questions", training), ("held-out questions", held_out)):
        if warning := methods.describe_overlong(agent, questions, kind):
            observer.log(warning)
    stream = QuestionStream(training, config.train.seed, config.data.shuffle)
    rollout_ranks = ranks.for_thread() if config.train.mode == "ahead" else ranks
    return Parts(
        config=config,
        run=run,
        learner=learner,
        engine=engine,
        publisher=publisher,
        sampler=RolloutSampler(agent, rubric, stream, config, rollout_ranks),
        held_out=held_out,
        saver=Saver(run, config.train.keep, ranks, always=(0,)),  # step 0 is the last rollback target
        trackers=Trackers.build(config.track, run, observer, enabled=ranks.rank == 0),
    )
