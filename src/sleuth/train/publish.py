"""Publishing: transfer new weights to the engine, without a copy if it shares the trainer's parameters."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.engines.base import Engine
from sleuth.engines.build import connect_servers, embed_policy
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import EngineFailure, InputError, TrainingStopped
from sleuth.model.policy import Policy
from sleuth.train.guards import RESUME
from sleuth.train.models import load_policy
from sleuth.train.step import Learner

Weights = Callable[[], Mapping[str, Tensor]]


class Publisher(Protocol):
    """Switches the engine to the trainer's newest weights."""

    def publish(self, version: int, *, keep_cache: bool = False) -> None:
        """Switch to the new weights; `keep_cache` reuses the KV cache of older weights, which is only approximate."""


class SharedWeights:
    """Publisher for an engine that shares the trainer's parameters."""

    def __init__(self, engine: PagedEngine) -> None:
        self._engine = engine

    def publish(self, version: int, *, keep_cache: bool = False) -> None:
        self._engine.publish(None, version, keep_cache=keep_cache)


class CopiedWeights:
    """Publisher for an embedded engine with its own copy of the parameters."""

    def __init__(self, engine: PagedEngine, weights: Weights) -> None:
        self._engine, self._weights = engine, weights

    def publish(self, version: int, *, keep_cache: bool = False) -> None:
        self._engine.publish(self._weights(), version, keep_cache=keep_cache)


class SentWeights:
    """Publisher for an engine in another process; sends each version once."""

    def __init__(self, engine: Engine, weights: Weights) -> None:
        self._engine, self._weights = engine, weights
        self._version: int | None = None  # of the engine, unknown before the first publish

    def publish(self, version: int, *, keep_cache: bool = False) -> None:  # noqa: ARG002  servers always drop it
        if version == self._version:
            return
        try:
            self._engine.publish(self._weights(), version)
        except EngineFailure as failure:
            raise TrainingStopped(f"{failure}; {RESUME}") from failure
        self._version = version


def build_engine(config: Config, learner: Learner, folder: Path) -> tuple[Engine, Publisher]:
    """Build the rollout engine of a run and its publisher; `folder` is the run folder."""

    def weights() -> Mapping[str, Tensor]:
        return dict(learner.policy.parameters())

    if not config.engine.is_server:
        policy = engine_policy(config, learner)
        engine = embed_policy(config, policy)
        return engine, SharedWeights(engine) if policy is learner.policy else CopiedWeights(engine, weights)
    model = recipe.resolve_policy(config.model.policy)
    try:
        servers = connect_servers(config, learner.policy.tokens, model, folder, training=True)
    except EngineFailure as failure:
        raise TrainingStopped(f"{failure}; {RESUME}") from failure
    if learner.policy.model.config.tie_word_embeddings:  # a tied head must be updated with the embedding
        named, embedding = weights(), learner.policy.model.get_input_embeddings().weight
        try:
            servers.require_tied_head(named, next(name for name, weight in named.items() if weight is embedding))
        except EngineFailure as failure:
            raise InputError(str(failure)) from failure
    return servers, SentWeights(servers, weights)


def engine_policy(config: Config, learner: Learner) -> Policy:
    """Return the learner's policy, or a copy if rollouts overlap with training or the weights are sharded."""
    if config.train.max_staleness == 0 and learner.ranks.world == 1:
        return learner.policy
    return load_policy(config, learner.policy.device)
