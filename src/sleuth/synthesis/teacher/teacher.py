"""The teacher: a language model that completes messages, in the embedded engine or behind an OpenAI-compatible URL."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from sleuth.agent.prompts import encode
from sleuth.agent.stamp import stamp_weights
from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.credentials import redact
from sleuth.engines.base import Engine, Sampling
from sleuth.engines.build import load_engine
from sleuth.engines.remote import ContextFull, Endpoint, complete_chat, served_model
from sleuth.errors import ConfigError
from sleuth.model.policy import select_device
from sleuth.model.tokens import Tokens

REMOTE_CONCURRENCY = 32
ENGINE_SETTINGS = ("engine.", "model.dtype", "agent.context_tokens")
# A GPU that only generates has room for more sequences than one that also trains.
GPU_ENGINE = {"slots": 256, "memory": 0.6}


@dataclass(frozen=True, slots=True)
class Reply:
    """A completed message and its cost in tokens."""

    text: str
    prompt_tokens: int
    completion_tokens: int


class Teacher(Protocol):
    """Completes conversations; `identity` is part of the key of every cached reply."""

    @property
    def identity(self) -> Mapping[str, Any]: ...

    @property
    def concurrency(self) -> int:
        """Number of requests to keep in flight."""
        ...

    async def complete(self, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> Reply:
        """Return the next assistant message; raises EngineFailure if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class EngineTeacher:
    """A teacher in an engine of this process, which batches requests and shares their common beginning."""

    engine: Engine
    tokens: Tokens
    identity: Mapping[str, Any]
    concurrency: int
    context: int

    async def complete(self, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> Reply:
        ids = encode([dict(message) for message in messages], self.tokens)
        if len(ids) >= self.context:
            raise ContextFull(f"the prompt has {len(ids):,} tokens, and the context {self.context:,}")
        completion = await self.engine.generate(ids, sampling)
        return Reply(self.tokens.decode(completion.ids), len(ids), len(completion.ids))


@dataclass(frozen=True, slots=True)
class RemoteTeacher:
    """A teacher behind an OpenAI-compatible server; temporary failures are retried until the endpoint's patience."""

    endpoint: Endpoint
    http: httpx.AsyncClient
    concurrency: int = REMOTE_CONCURRENCY

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"url": redact(self.endpoint.base), "model": self.endpoint.model}

    async def complete(self, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> Reply:
        reply = await complete_chat(self.http, self.endpoint, messages, sampling)
        return Reply(reply.content, reply.prompt_tokens, reply.completion_tokens)


@dataclass(frozen=True, slots=True)
class TeacherSource:
    """Where the teacher is: a server, or a model folder with `settings` of the engine."""

    model: str
    endpoint: Endpoint | None = None
    settings: tuple[str, ...] = ()
    concurrency: int | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Teacher]:
        """Connect to the server, or load the model; frees both at the end."""
        if self.endpoint is not None:
            async with self.endpoint.client() as http:
                yield RemoteTeacher(self.endpoint, http, self.concurrency or REMOTE_CONCURRENCY)
            return
        # In a thread: connecting to vLLM servers runs an event loop of its own.
        teacher = await asyncio.to_thread(self._load)
        try:
            yield teacher
        finally:
            await teacher.engine.close()

    def check(self) -> None:
        """Raise a UserError if the server does not answer or does not serve the model, or there is no model folder."""
        if self.endpoint is None:
            recipe.resolve_policy(self.model)
            self._config()
            return
        if self.settings:
            raise ConfigError(f"--set {self.settings[0]} has no effect with a server as teacher; remove it")
        served_model(self.endpoint)

    def _config(self) -> Config:
        for setting in self.settings:
            if not setting.strip().startswith(ENGINE_SETTINGS):
                raise ConfigError(f"--set {setting} has no effect on a teacher; only engine settings do")
        # The paths are not opened: a config needs them, and a teacher does not.
        tree: dict[str, Any] = {
            "model": {"policy": self.model},
            "data": {"train": "unused.jsonl", "test": "unused.jsonl"},
            "agent": {"method": "direct"},
            "engine": dict(GPU_ENGINE) if select_device().type == "cuda" else {},
        }
        return recipe.compose(tree, self.settings)

    def _load(self) -> EngineTeacher:
        config, weights = self._config(), recipe.resolve_policy(self.model)
        engine, tokens = load_engine(config, weights, lockstep=False)
        identity = {"sha256": stamp_weights(weights)}
        # Twice the slots, so that the engine never waits for this process to send the next request.
        concurrency = self.concurrency or 2 * config.engine.slots
        return EngineTeacher(engine, tokens, identity, concurrency, config.agent.context_tokens)
