"""An agent that searches for the last word of a question and answers with it, served on a port of its own."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure, InputError, SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Hit, Passage
from sleuth.serve.agent.server import ServedModel, ServerLimits, application


@dataclass
class Shelf:
    """Finds one book for every query; `closed` has no answer, `lost` and `burnt` are errors; none comes until open."""

    open: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        self.asked += queries
        while not self.open.is_set():  # noqa: ASYNC110  it is set in another thread
            await asyncio.sleep(0.005)
        if "lost" in queries:
            raise InputError("the catalogue changed; index it again")
        if "burnt" in queries:
            raise ZeroDivisionError
        return [
            SearchUnavailable(query, "the shelf is closed")
            if query == "closed"
            else [
                Hit(Passage(query, f'"{query}"\nA book about {query}.', {"url": f"https://books.example/{query}"}), 2)
            ]
            for query in queries
        ]


@dataclass
class House:
    """A server with its shelf, and clients of it."""

    url: str
    shelf: Shelf
    clients: ExitStack

    def client(self, key: str = "none") -> openai.OpenAI:
        return self.clients.enter_context(openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0))

    def post(self, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, **options)

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/health").json()
        return found

    def figure(self, name: str) -> float:
        page = httpx.get(f"{self.url}/metrics").text
        return float(next(line for line in page.splitlines() if line.startswith(f"{name} ")).split()[-1])


def write_answer(tokens: Tokens) -> ScriptedEngine:
    """Thinks, searches for the last word, thinks and answers with it; `break` breaks it, `babble` says nothing."""

    def script(ids: Sequence[int]) -> list[int]:
        text = tokens.decode(ids)
        word = text.partition("?")[0].split()[-1]
        if word == "break":
            raise EngineFailure("the device is lost")
        if word == "babble":
            return tokens.encode("and so on")
        if "<information>" not in text:
            return tokens.encode(f"<think> I need {word}. </think> <search> {word} </search>")
        return tokens.encode(f"<think> It is about {word}. </think> <answer> {word} </answer>")

    return ScriptedEngine(script)


@pytest.fixture
def serving(tokens: Tokens) -> Callable[..., Any]:
    """Serves an agent, in a thread, while the block lasts."""

    @contextmanager
    def serve(terms: ServerLimits | None = None, *, opened: bool = True, **options: Any) -> Iterator[House]:
        shelf = Shelf()
        if opened:
            shelf.open.set()
        config = AgentConfig.model_validate({"prompt": "brief", "searches": 2, "context_tokens": 400})
        agent = Agent(write_answer(tokens), tokens, Tags(), Toolbox(shelf, 1), config)
        app = application(agent, ServedModel("wise", "books", 7), terms or ServerLimits(), **options)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            while not server.started:
                thread.join(0.005)
            with ExitStack() as clients:
                yield House(f"http://127.0.0.1:{listener.getsockname()[1]}", shelf, clients)
            shelf.open.set()
            server.should_exit = True
            thread.join()

    return serve


@pytest.fixture
def house(serving: Callable[..., Any]) -> Iterator[House]:
    with serving() as served:
        yield served
