"""An agent overheard: its engine and its tool tell an account what happens in one episode, while it does."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sleuth.agent.conversation import TextStream, trim_at_stop
from sleuth.agent.episode import Agent
from sleuth.agent.tools import Failure, Toolbox, ToolResult
from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.errors import FunctionFailed, SearchUnavailable
from sleuth.records import ToolCall
from sleuth.serve.agent.account import Account
from sleuth.serve.agent.events import source
from sleuth.serve.agent.thoughts import Thoughts, openings

if TYPE_CHECKING:
    from torch import Tensor


def overheard(agent: Agent, account: Account, cuts: Mapping[str, Any]) -> Agent:
    """The agent for one episode; `cuts` are settings of sampling beside its temperature."""
    tool = agent.tools
    heard = HeardTool(tool.retriever, tool.k, tool.pages, tool.tools, tool.searches, account=account)
    return replace(agent, engine=HeardEngine(agent, account, cuts), tools=heard)


@dataclass(frozen=True, slots=True)
class HeardEngine:
    """The engine of an agent, whose tokens are told as thoughts and its turns as steps."""

    agent: Agent
    account: Account
    cuts: Mapping[str, Any]

    def session(self, order: int) -> AbstractContextManager[Session]:
        return self.agent.engine.session(order)

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: Session | None = None,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        agent, account = self.agent, self.account
        bounded = replace(sampling, max_tokens=account.turn(sampling.max_tokens), **self.cuts)
        thoughts = Thoughts(openings(agent.protocol))
        speech = TextStream(agent.tokens, lambda text: account.think(thoughts.hear(text)))

        def heard(new: Sequence[int]) -> None:
            speech.add(new)
            if on_tokens is not None:
                on_tokens(new)

        completion = await agent.engine.generate(ids, bounded, session, heard)
        account.sampled(len(completion.ids))
        _, text = trim_at_stop(completion, sampling.stops, agent.tokens)
        account.think(thoughts.end(text))
        account.act(agent.protocol.parse(text), thoughts.whole(text))
        return completion

    def publish(self, weights: "Mapping[str, Tensor] | None", version: int) -> None:
        self.agent.engine.publish(weights, version)

    async def close(self) -> None:
        """The engine is everybody's, and stays."""


@dataclass(frozen=True, slots=True)
class HeardTool(Toolbox):
    """The tool of an agent, whose calls and sources are told."""

    account: Account = field(kw_only=True)

    async def call(self, call: ToolCall) -> ToolResult | Failure:
        self.account.call(call)
        began = time.monotonic()
        found = await Toolbox.call(self, call)
        told: dict[str, Any] = {"seconds": round(time.monotonic() - began, 4)}
        if isinstance(found, SearchUnavailable):
            told["failure"] = found.cause
        elif isinstance(found, FunctionFailed):
            told["failure"] = str(found)
        elif isinstance(found, str):
            told["result"] = found
        else:
            told["sources"] = [
                {"for": query, **source(hit)} for query, hits in zip(call.lookups, found, strict=True) for hit in hits
            ]
        self.account.found(told)
        return found
