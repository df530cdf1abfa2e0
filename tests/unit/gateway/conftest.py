"""A gateway over loopback, with a scripted engine and a small index of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import SearchUnavailable
from sleuth.gateway.rollout import Policy, Rollout
from sleuth.model.tokens import Tokens
from sleuth.records import Hit, Passage, Question

QUESTION = Question("q", "Where?", ("Oslo",), "test")
END = "<|im_end|>"


class Shelf:
    """A search engine with one passage; it fails at the query "lost"."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        hit = Hit(Passage("oslo", '"Oslo"\nOslo is the capital of Norway.'), 0.5)
        return [SearchUnavailable(query, "it is lost") if query == "lost" else [hit][:k] for query in queries]


@pytest.fixture
def tools() -> Toolbox:
    return Toolbox(Shelf(), 2)


@pytest.fixture
def chat_tokens(speaker: Callable[..., Tokens]) -> Tokens:
    return speaker("hermes")


@pytest.fixture
def make_rollout(chat_tokens: Tokens) -> Callable[..., Rollout]:
    """Makes a rollout whose model says these lines in order, or one on the given engine."""

    def make(*lines: str, engine: ScriptedEngine | None = None, **settings: Any) -> Rollout:
        played = ScriptedEngine.playing(*[chat_tokens.encode_trusted(line + END) for line in lines])
        policy = Policy.of(engine or played, chat_tokens, AgentConfig(**{"run": "import:a.b", **settings}))
        return Rollout(policy, Task(QUESTION, seed=7))

    return make
