"""A run as something to use: its newest policy with its index, ready to ask."""

from pathlib import Path

from sleuth import recipe
from sleuth.agent.episode import Agent
from sleuth.config import Config
from sleuth.errors import InputError
from sleuth.runs import Run
from sleuth.train.assemble import SEARCHES, agent_of, sources_of
from sleuth.train.learners import device_of, dtype_of
from sleuth.train.policy import Policy
from sleuth.train.ranks import ALONE


def config_of(run: Run) -> Config:
    """The settings the run was begun with."""
    return recipe.restore(run.manifest()["config"])


def agent(run: Run, initial: bool = False) -> Agent:
    """The agent of a run as it is now, or as it was before training."""
    config = config_of(run)
    folder = recipe.resolve_policy(config.model.policy) if initial else latest(run)
    device = device_of(ALONE)
    # What is asked of a finished run is no part of its recording.
    asked = config.model_copy(update={"retrieval": config.retrieval.model_copy(update={"record": False})})
    _, ready = agent_of(
        asked, Policy.load(folder, device, dtype_of(config, device)), sources_of(config, run).index, run.path / SEARCHES
    )
    return ready


def latest(run: Run) -> Path:
    """The newest checkpoint of a run."""
    newest = run.latest()
    if newest is None:
        raise InputError(f"{run.path} has no checkpoint yet; continue it with: sleuth train --resume {run.path}")
    return newest
