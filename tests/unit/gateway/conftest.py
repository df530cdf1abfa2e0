"""A scripted engine, a small index, and agents that do what the question says."""

from collections.abc import Callable, Sequence
from pathlib import Path
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

AGENTS = """
import asyncio
import os
import signal
import sys
import time


def plain(task, llm):
    what, _, value = task.question.question.partition(" ")
    match what:
        case "reward":
            return float(value)
        case "sleep":
            time.sleep(float(value))
        case "exit":
            os._exit(int(value))
        case "signal":
            os.kill(os.getpid(), int(value))
        case "raise":
            raise ValueError(value)
        case "quit":
            sys.exit(value)
        case "cancel":
            raise asyncio.CancelledError(value)
        case "text":
            return value
        case "pid":
            return os.getpid()
        case "key":
            return float(llm.api_key)


async def run(task, llm):
    await asyncio.sleep(0)
    return plain(task, llm)


async def patient(task, llm):
    await asyncio.sleep(float(task.question.question))
    return 1.0


def wrong(task):
    return 1.0
"""


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


@pytest.fixture(scope="session")
def _agents_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agents")
    (folder / "obedient_agents.py").write_text(AGENTS)
    return folder


@pytest.fixture
def agents(_agents_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of the module of agents, which worker processes can import too."""
    monkeypatch.syspath_prepend(_agents_folder)
    return "import:obedient_agents"
