"""A loopback server with the protocol of vLLM 0.32; each token is its predecessor plus one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import log
from typing import Any

import pytest


class Double:
    """Answers every path that the engine asks for; its settings say what goes wrong, and when."""

    def __init__(self) -> None:
        self.version = "0.32.0"
        self.models = [{"id": "policy", "max_model_len": 512}]
        self.raw = False
        self.flat = 0  # tokens after which all are as likely
        self.drops = True  # what it cached
        self.developer = True
        self.status = 200
        self.message: str | None = None
        self.pause = 0.0
        self.dies_after: int | None = None
        self.silent = False
        self.spelled: list[int] = []
        self.asked: list[dict[str, Any]] = []
        self.posted: list[tuple[str, Any]] = []
        self.gone = 0
        self.address = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def die(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = [line for line in head.splitlines() if line.lower().startswith("content-length")]
            sent = await reader.readexactly(int(length[0].split(":")[1])) if length else b""
            method, path, _ = head.split(" ", 2)
            await self._answer(writer, f"{method} {path}", json.loads(sent) if sent else None)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone += 1
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, what: str, body: Any) -> None:
        match what:
            case "GET /health":
                await _whole(writer, "", 200)
            case "GET /version":
                await _whole(writer, {"version": self.version}, 200)
            case "GET /v1/models":
                await _whole(writer, {"data": self.models}, 200)
            case "POST /v1/completions" if not body.get("stream"):
                await _whole(writer, self._likeliest(body), 200)
            case "POST /v1/completions":
                self.asked.append(body)
                await self._stream(writer, body)
            case _:
                self.posted.append((what, body))
                await _whole(writer, {"success": self.drops}, 200 if self.developer else 404)

    def _likeliest(self, body: Any) -> dict[str, Any]:
        scale = 1.0 if self.raw else 1 / body["temperature"]
        scale *= body["prompt"][-1] > self.flat
        top = {f"token_id:{token}": -scale * token for token in range(body["logprobs"])}
        top |= {f"token_id:{token}": -7.0 for token in body.get("logprob_token_ids", ())}
        return {"choices": [{"logprobs": {"top_logprobs": [top]}}]}

    async def _stream(self, writer: asyncio.StreamWriter, body: Any) -> None:
        if self.status != 200:
            await _whole(writer, {"error": {"message": "it is said why"}}, self.status)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n")
        last, most = body["prompt"][-1], body["max_tokens"]
        for place in range(most):
            if self.silent:
                await asyncio.sleep(3600)
            if self.dies_after is not None and place >= self.dies_after:
                self.die()
            await asyncio.sleep(self.pause)
            finish = "length" if place == most - 1 else None
            token = self.spelled[len(body["prompt"]) - 1 + place] if self.spelled else last + 1 + place
            writer.write(f"data: {self.message or piece(token, finish)}\n\n".encode())
            await writer.drain()
        writer.write(b"data: [DONE]\n\n")


def piece(token: int, finish: str | None = None, logprob: float = -log(2)) -> str:
    logprobs = {"token_logprobs": [logprob], "tokens": [f"token_id:{token}"]}
    choice = {"token_ids": [token], "logprobs": logprobs, "finish_reason": finish, "stop_reason": None}
    return json.dumps({"object": "text_completion", "choices": [choice]})


async def _whole(writer: asyncio.StreamWriter, answer: Any, status: int) -> None:
    content = json.dumps(answer).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode())
    writer.write(content)
    await writer.drain()


Doubles = Callable[[int], AbstractAsyncContextManager[list[Double]]]


@pytest.fixture
def doubles() -> Doubles:
    """Opens so many of them."""

    @asynccontextmanager
    async def opened(count: int) -> AsyncIterator[list[Double]]:
        servers = [Double() for _ in range(count)]
        for server in servers:
            await server.open()
        try:
            yield servers
        finally:
            for server in servers:
                server.die()
            # Connections are closed in a turn of the loop of their own.
            await asyncio.sleep(0.01)

    return opened
