"""A run as something to use: its newest policy with its index, ready to ask."""

from pathlib import Path

from sleuth.agent.episode import Agent
from sleuth.config import recipe
from sleuth.config.engine import EngineConfig
from sleuth.config.tree import Config
from sleuth.errors import InputError
from sleuth.runs.run import Run
from sleuth.train.assemble import SEARCHES, agent_of, require_search, sources_of
from sleuth.train.engines import standing


def config_of(run: Run) -> Config:
    """The settings the run was begun with."""
    return recipe.restore(run.config_and_inputs()[0])


def agent(run: Run, initial: bool = False) -> Agent:
    """The agent of a run as it is now, or as it was before training."""
    config = config_of(run)
    folder = recipe.resolve_policy(config.model.policy) if initial else latest(run)
    # What is asked of a finished run is no part of its recording, and the servers it was trained with may be gone.
    here = config.engine if config.engine.kind == "paged" else EngineConfig(slots=config.engine.slots)
    searched = config.retrieval.model_copy(update={"record": False})
    asked = config.model_copy(update={"retrieval": searched, "engine": here})
    require_search(asked)
    engine, tokens = standing(asked, folder)
    return agent_of(asked, engine, tokens, sources_of(config, run).index, run.path / SEARCHES)


def latest(run: Run) -> Path:
    """The newest checkpoint of a run."""
    newest = run.latest()
    if newest is None:
        raise InputError(f"{run.path} has no checkpoint yet; continue it with: sleuth train --resume {run.path}")
    return newest
