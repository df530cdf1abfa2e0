"""Publishing: transfer new weights to the engine, without a copy if it shares the trainer's parameters."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.engines.base import Engine
from sleuth.engines.build import connect_servers, embed_policy
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.servers.engine import ServerEngine
from sleuth.errors import ConfigError, EngineFailure, InputError, TrainingStopped
from sleuth.model.policy import Policy, select_dtype
from sleuth.train.guards import RESUME
from sleuth.train.models import load_policy
from sleuth.train.ranks import ALONE, Ranks
from sleuth.train.sharding import gather_weights
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


@dataclass(slots=True)
class SentTotals:
    """Time and bytes of the weights sent to engines in other processes."""

    seconds: float = 0.0
    bytes: int = 0

    def collect(self) -> dict[str, float]:
        """Return the metrics since the last call."""
        found = {"weights/seconds": self.seconds, "weights/bytes": float(self.bytes)}
        self.seconds, self.bytes = 0.0, 0
        return found


class SentWeights:
    """Publisher for servers; each version is sent once. Collective: all ranks gather the weights, rank 0 sends them."""

    def __init__(self, engine: ServerEngine, weights: Weights, ranks: Ranks = ALONE) -> None:
        self._engine, self._weights, self._ranks = engine, weights, ranks
        self._version: int | None = None  # of the engine, unknown before the first publish
        self.totals = SentTotals()

    def publish(self, version: int, *, keep_cache: bool = False) -> None:  # noqa: ARG002  servers always drop it
        if version == self._version:
            return
        started, weights = time.monotonic(), self._weights()
        try:
            with self._engine.updating(version):
                self._send(weights, version)
        except EngineFailure as failure:
            raise TrainingStopped(f"{failure}; {RESUME}") from failure
        self._version = version
        self.totals.seconds += time.monotonic() - started
        self.totals.bytes += sum(weight.nbytes for weight in weights.values()) * len(self._engine.addresses)

    def _send(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Send from rank 0, once every rank holds back its requests; no rank keeps a server that another one lost."""
        engine, ranks = self._engine, self._ranks
        for (lost,) in ranks.gather([engine.lost], "the servers before a weight update"):
            engine.remove(lost)
        failure = None
        if ranks.rank == 0:
            try:
                engine.send(weights, version)
            except EngineFailure as error:
                failure = str(error)
        mine = (failure, engine.lost, engine.weights_name(version))
        ((failure, lost, name),), *_ = ranks.gather([mine], "the servers after a weight update")
        if failure is not None:
            raise EngineFailure(failure)
        engine.adopt(lost, name)


def build_engine(config: Config, learner: Learner, folder: Path) -> tuple[Engine, Publisher]:
    """Build the rollout engine of a rank and its publisher; `folder` is the run folder. Collective."""
    policy = learner.policy
    trained = dict(policy.parameters())
    if not config.engine.is_server:
        copy = engine_policy(config, learner)
        engine = embed_policy(config, copy)
        return engine, SharedWeights(engine) if copy is policy else CopiedWeights(engine, lambda: trained)

    def weights() -> Mapping[str, Tensor]:
        if learner.ranks.world == 1:
            return trained
        keeps = learner.ranks.rank == 0
        host = config.engine.weights == "disk"  # a copy on the GPU is needed only if the servers read it there
        gathered = gather_weights(trained, sent_dtype(config, policy))
        return {name: weight.cpu() if host else weight for name, weight in gathered if keeps}

    servers = _connect(config, learner, folder)
    if policy.model.config.tie_word_embeddings and policy.adapter is None:
        named, embedding = weights(), policy.model.get_input_embeddings().weight
        _require_tied_head(servers, named, next(name for name, each in trained.items() if each is embedding), learner)
    return servers, SentWeights(servers, weights, learner.ranks)


def sent_dtype(config: Config, policy: Policy) -> torch.dtype | None:
    """The dtype in which weights are sent to engines in other processes; adapters keep theirs."""
    return None if policy.adapter is not None else select_dtype(config.model, policy.device)


def _connect(config: Config, learner: Learner, folder: Path) -> ServerEngine:
    """Connect to the servers; without an address, rank 0 starts one for all ranks."""
    ranks, policy, model = learner.ranks, learner.policy, recipe.resolve_policy(config.model.policy)
    connect = partial(connect_servers, config, policy.tokens, model, folder, adapter=policy.adapter)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world))
    if not config.engine.url and here < ranks.world:
        raise ConfigError(
            f"{ranks.world} processes on several machines cannot share a server that one of them starts; start servers "
            "first and set engine.url, or use --ray"
        )
    servers = None
    try:
        if ranks.rank == 0:
            servers = connect(training=True)
        (addresses,), *_ = ranks.gather([servers.addresses if servers else ()], "the addresses of the servers")
        if servers is None:
            servers = connect(training=False, addresses=addresses)
    except EngineFailure as failure:
        raise TrainingStopped(f"{failure}; {RESUME}") from failure
    ranks.barrier("the connections to the servers")
    return servers


def _require_tied_head(servers: ServerEngine, weights: Mapping[str, Tensor], embedding: str, learner: Learner) -> None:
    """Check that a tied head is updated with its embedding; raises InputError on every rank."""
    problem = None
    if learner.ranks.rank == 0:
        try:
            servers.require_tied_head(weights, embedding)
        except (EngineFailure, ConfigError) as failure:
            problem = str(failure)
    ((problem,), *_) = learner.ranks.gather([problem], "the head of the servers")
    if problem is not None:
        raise InputError(problem)


def engine_policy(config: Config, learner: Learner) -> Policy:
    """Return the learner's policy, or a copy if rollouts overlap with training or the weights are sharded."""
    if config.train.max_staleness == 0 and learner.ranks.world == 1:
        return learner.policy
    return load_policy(config, learner.policy.device)
