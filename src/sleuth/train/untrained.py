"""A model folder as something to use: with an index it is an agent, though no run has trained it."""

from pathlib import Path

from sleuth.agent.episode import Agent
from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.errors import ConfigError
from sleuth.train.assemble import SEARCHES, agent_of, require_search
from sleuth.train.engines import standing

TABLES = ("agent.", "engine.", "retrieval.", "reward.")


def agent(model: str, questions: Path, index: str | None, settings: list[str]) -> tuple[Agent, Config]:
    """The agent of a model with what it searches, and the config it comes from."""
    folder = recipe.resolve_policy(model)
    if index is None:
        raise ConfigError(f"{model} is a model, which searches nothing by itself; name an index with --index")
    for each in settings:
        if not each.strip().startswith(TABLES):
            raise ConfigError(f"--set {each} has no effect here; only settings of {', '.join(TABLES)} have one")
    config = recipe.compose(
        {
            "model": {"policy": model},
            "data": {"train": str(questions), "test": str(questions)},
            "retrieval": {"index": index},
        },
        settings,
    )
    require_search(config)
    engine, tokens = standing(config, folder)
    return agent_of(config, engine, tokens, Path(index), Path(SEARCHES)), config
