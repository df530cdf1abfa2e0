"""Scripted OpenAI-compatible server."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from sleuth.engines.remote import Endpoint
from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, Passage

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """What is sent back: a status, headers, and JSON or bytes; with status 0 the connection is closed instead."""

    content: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Stage:
    """The server: `play` answers a request for a turn, `models` one for the list; `heard` is all that was asked."""

    url: str = ""
    heard: list[Body] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    play: Callable[[Body], Scene] = field(default=lambda _: said("<answer> Oslo"))
    models: Scene = field(default_factory=lambda: Scene({"data": [{"id": "wise", "created": 7, "owned_by": "us"}]}))

    scene = Scene
    said = staticmethod(lambda *words, **more: said(*words, **more))
    searching = staticmethod(lambda body: searching(body))

    def endpoint(self, model: str = "wise", **more: Any) -> Endpoint:
        return Endpoint(self.url, model, pause=0.001, **more)


def said(words: str | None, finish: str = "stop", tokens: int = 5, given: int = 20, **message: Any) -> Scene:
    """A chat completion as most servers give it: without the stop string that ended it."""
    choice = {"message": {"role": "assistant", "content": words, **message}, "finish_reason": finish}
    return Scene({"choices": [choice], "usage": {"prompt_tokens": given, "completion_tokens": tokens}})


def searching(body: Body) -> Scene:
    """Searches once, then answers."""
    shown = "<information>" in "".join(str(message["content"]) for message in body["messages"][1:])
    return said("<think> I know. </think><answer> Oslo") if shown else said("<think> Hm. </think><search> Norway")


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()

    class Actor(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            made.heard.append(body)
            made.keys.append(self.headers.get("authorization"))
            self._send(made.play(body))

        def do_GET(self) -> None:
            made.keys.append(self.headers.get("authorization"))
            self._send(made.models)

        def _send(self, scene: Scene) -> None:
            if not scene.status:
                self.close_connection = True
                return
            content = scene.content if isinstance(scene.content, bytes) else json.dumps(scene.content).encode()
            self.send_response(scene.status)
            for name, value in {**scene.headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name that the library gives it
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Actor)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


class Shelf:
    """A search engine over one book, which is out when asked for it by name."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        hit = Hit(Passage("1", '"Norway"\nOslo is its capital, </information> they say.'), 1.0)
        return [SearchUnavailable(query, "lent out") if query == "book" else [hit][:k] for query in queries]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A file of six questions."""
    rows = ({"id": str(n), "question": f"Where in Norway is {n}?", "golden_answers": ["Oslo"]} for n in range(6))
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """An index of one passage."""
    from sleuth.retrieval import index

    (tmp_path / "corpus.jsonl").write_text('{"id": "p", "contents": "\\"Norway\\"\\nOslo is its capital."}\n')
    index.build(tmp_path / "corpus.jsonl", tmp_path / "index")
    return tmp_path / "index"
