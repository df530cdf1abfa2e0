"""The engine of a rollout worker: embedded in its process, or a server on its node that it starts and watches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from sleuth.cluster import ray_client
from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.engines.base import Engine
from sleuth.engines.build import connect_servers, embed_policy
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.paged.scheduler import EngineStats
from sleuth.engines.servers.engine import ServerEngine
from sleuth.errors import EngineFailure, InputError, TrainingStopped
from sleuth.model.policy import select_device
from sleuth.model.tokens import Tokens
from sleuth.train.guards import RESUME
from sleuth.train.models import load_policy, make_adapter


class WorkerEngine(Protocol):
    """What a rollout worker needs of its engine; `is_alive` is False once the worker must be replaced."""

    @property
    def engine(self) -> Engine: ...

    @property
    def tokens(self) -> Tokens: ...

    @property
    def stats(self) -> EngineStats: ...

    @property
    def is_alive(self) -> bool: ...

    def publish(self, weights: Mapping[str, Tensor], version: int, *, keep_cache: bool) -> None:
        """Switch to new weights; raises EngineFailure if that fails."""

    def stop(self) -> None:
        """Stop the processes of the engine and remove its files."""


@dataclass(frozen=True, slots=True)
class EmbeddedEngine:
    """An engine in the worker's process, with a copy of the weights."""

    engine: PagedEngine
    tokens: Tokens

    @classmethod
    def load(cls, config: Config) -> "EmbeddedEngine":
        policy = load_policy(config, select_device())
        policy.model.requires_grad_(False)
        # Episodes come one at a time from several trainers: no batch could be repeated by waiting.
        return cls(embed_policy(config, policy, lockstep=False), policy.tokens)

    @property
    def stats(self) -> EngineStats:
        return self.engine.stats

    @property
    def is_alive(self) -> bool:
        return True

    def publish(self, weights: Mapping[str, Tensor], version: int, *, keep_cache: bool) -> None:
        self.engine.publish(weights, version, keep_cache=keep_cache)

    def stop(self) -> None:
        """No-op: it ends with the worker."""


@dataclass(slots=True)
class OwnServer:
    """A server of `engine.kind` on the worker's node, which serves this worker alone and ends with it."""

    engine: ServerEngine
    tokens: Tokens
    embedding: str | None  # of a tied head that is not checked yet
    device: torch.device  # where the server expects the weights
    stats: EngineStats = field(default_factory=EngineStats)  # servers do not count their work

    @classmethod
    def start(cls, config: Config, folder: Path, worker: int) -> "OwnServer":
        """Start the server; raises TrainingStopped with the end of its log if it does not serve."""
        model = recipe.resolve_policy(config.model.policy)
        tokens = Tokens.load(model)
        try:
            engine = connect_servers(
                config, tokens, model, folder, training=True, worker=worker, adapter=make_adapter(config)
            )
        except (EngineFailure, InputError) as failure:
            if ray_client.was_restarted():  # the server before may not have freed its GPUs yet: try again
                ray_client.leave(f"rollout worker {worker}: {failure}")
            raise TrainingStopped(f"{failure}; {RESUME}") from failure
        device = select_device() if config.engine.weights == "device" else torch.device("cpu")
        return cls(engine, tokens, None if config.model.lora.rank else find_tied_embedding(model), device)

    @property
    def is_alive(self) -> bool:
        return self.engine.is_alive

    def publish(self, weights: Mapping[str, Tensor], version: int, *, keep_cache: bool) -> None:  # noqa: ARG002
        placed = {name: weight.to(self.device) for name, weight in weights.items()}
        if self.embedding is not None:
            self.engine.require_tied_head(placed, self.embedding)
            self.embedding = None
        self.engine.publish(placed, version)

    def stop(self) -> None:
        self.engine.stop()


def find_tied_embedding(model: Path) -> str | None:
    """Return the name of the embedding if the model's output head is the same tensor, otherwise None."""
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    if not skeleton.config.tie_word_embeddings:
        return None
    embedding = skeleton.get_input_embeddings().weight
    named: dict[str, Tensor] = dict(skeleton.named_parameters())
    return next(name for name, weight in named.items() if weight is embedding)
