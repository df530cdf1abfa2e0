"""Loopback servers with the interfaces of vLLM 0.32 and SGLang 0.5.17; each token is its predecessor plus one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import log
from typing import Any, NamedTuple

import pytest

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.servers.engine import ServerEngine
from sleuth.engines.sglang.engine import SglangEngine
from sleuth.engines.vllm.engine import VllmEngine
from sleuth.model.tokens import Tokens


class Double:
    """Answers every path that the engine asks for; its settings say what goes wrong, and when."""

    path = ""  # where completions are requested

    def __init__(self) -> None:
        self.version = ""
        self.models = [{"id": "policy", "max_model_len": 512}]
        self.raw = False
        self.flat = 0  # tokens after which all are as likely
        self.drops = True  # what it cached
        self.administered = True
        self.status = 200
        self.message: str | None = None
        self.pause = 0.0
        self.dies_after: int | None = None
        self.silent = False
        self.spelled: list[int] = []
        self.asked: list[dict[str, Any]] = []
        self.posted: list[tuple[str, Any]] = []
        self.gone = 0
        self.idle = asyncio.Event()  # set when the last stream that began has ended
        self.idle.set()
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

    @staticmethod
    def prompt(body: Any) -> list[int]:
        """The tokens of a request."""
        raise NotImplementedError

    def described(self, what: str) -> Any:
        """What a GET answers, None for a path that the server does not know."""
        raise NotImplementedError

    def likeliest(self, body: Any) -> Any:
        raise NotImplementedError

    def administer(self, what: str, body: Any) -> Any:
        """What a POST other than for tokens answers."""
        raise NotImplementedError

    async def until_ready(self, what: str) -> None:
        """Waits until the server does what a POST asks for."""

    def most(self, body: Any) -> int:
        raise NotImplementedError

    def chunk(self, tokens: list[int], finish: str | None) -> str:
        """The message after these tokens, of which the last one is new."""
        raise NotImplementedError

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
        if what.startswith("GET /health"):
            await _whole(writer, "", 200)
        elif what.startswith("GET "):
            found = self.described(what)
            await _whole(writer, found, 404 if found is None else 200)
        elif what == f"POST {self.path}" and body.get("stream"):
            self.asked.append(body)
            self.idle.clear()
            try:
                await self._stream(writer, body)
            finally:
                self.idle.set()
        elif what == f"POST {self.path}":
            await _whole(writer, self.likeliest(body), 200)
        else:
            self.posted.append((what, body))
            await self.until_ready(what)
            answer, status = self.administer(what, body)
            await _whole(writer, answer, status if self.administered else 404)

    async def _stream(self, writer: asyncio.StreamWriter, body: Any) -> None:
        if self.status != 200:
            await _whole(writer, {"error": {"message": "it is said why"}}, self.status)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n")
        prompt, most, tokens = self.prompt(body), self.most(body), list[int]()
        for place in range(most):
            if self.silent:
                await asyncio.sleep(3600)
            if self.dies_after is not None and place >= self.dies_after:
                self.die()
            await asyncio.sleep(self.pause)
            finish = "length" if place == most - 1 else None
            tokens.append(self.spelled[len(prompt) - 1 + place] if self.spelled else prompt[-1] + 1 + place)
            writer.write(f"data: {self.message or self.chunk(tokens, finish)}\n\n".encode())
            await writer.drain()
        writer.write(b"data: [DONE]\n\n")


class VllmDouble(Double):
    """vLLM 0.32."""

    path = "/v1/completions"

    def __init__(self) -> None:
        super().__init__()
        self.version = "0.32.0"

    @staticmethod
    def prompt(body: Any) -> list[int]:
        found: list[int] = body["prompt"]
        return found

    def described(self, what: str) -> Any:
        return {"GET /version": {"version": self.version}, "GET /v1/models": {"data": self.models}}.get(what)

    def administer(self, what: str, body: Any) -> Any:
        return {"success": self.drops}, 200

    def likeliest(self, body: Any) -> Any:
        scale = 1.0 if self.raw else 1 / body["temperature"]
        scale *= body["prompt"][-1] > self.flat
        top = {f"token_id:{token}": -scale * token for token in range(body["logprobs"])}
        top |= {f"token_id:{token}": -7.0 for token in body.get("logprob_token_ids", ())}
        return {"choices": [{"logprobs": {"top_logprobs": [top]}}]}

    def most(self, body: Any) -> int:
        found: int = body["max_tokens"]
        return found

    def chunk(self, tokens: list[int], finish: str | None) -> str:
        logprobs = {"token_logprobs": [-log(2)], "tokens": [f"token_id:{tokens[-1]}"]}
        choice = {"token_ids": tokens[-1:], "logprobs": logprobs, "finish_reason": finish, "stop_reason": None}
        return json.dumps({"object": "text_completion", "choices": [choice]})


class SglangDouble(Double):
    """SGLang 0.5.17, whose messages repeat all tokens unless it is `incremental`."""

    path = "/generate"

    def __init__(self) -> None:
        super().__init__()
        self.version = "0.5.17"
        self.deterministic: bool | None = True
        self.incremental = False
        self.weights = "default"

    @staticmethod
    def prompt(body: Any) -> list[int]:
        found: list[int] = body["input_ids"]
        return found

    def described(self, what: str) -> Any:
        info = {"version": self.version, "enable_deterministic_inference": self.deterministic, "tp_size": 1}
        return {
            "GET /server_info": {name: value for name, value in info.items() if value is not None},
            "GET /v1/models": {"data": self.models},
            "GET /model_info": {"weight_version": self.weights},
        }.get(what)

    def administer(self, what: str, body: Any) -> Any:
        if what == "POST /update_weight_version" and self.administered:
            self.weights = body["new_version"]
        if what.startswith("POST /flush_cache"):
            return "Cache not flushed because there are pending requests.", 200 if self.drops else 400
        return {"success": True, "message": "done"}, 200

    async def until_ready(self, what: str) -> None:
        paused = any("pause_generation" in path for path, _ in self.posted)
        if "update_weights_from" in what and not paused:
            await self.idle.wait()

    def likeliest(self, body: Any) -> Any:
        scale = 1.0 if self.raw else 1 / body["sampling_params"]["temperature"]
        scale *= body["input_ids"][-1] > self.flat
        top = [[-scale * token, token, None] for token in range(body["top_logprobs_num"])]
        return {"output_ids": [0], "meta_info": {"output_top_logprobs": [top]}}

    def most(self, body: Any) -> int:
        found: int = body["sampling_params"]["max_new_tokens"]
        return found

    def chunk(self, tokens: list[int], finish: str | None) -> str:
        shown = tokens[-1:] if self.incremental else tokens
        meta = {
            "finish_reason": finish and {"type": finish, "length": len(tokens)},
            "weight_version": self.weights,
            "output_token_logprobs": [[-log(2), token, None] for token in shown],
            "completion_tokens": len(tokens),
        }
        return json.dumps({"text": "", "output_ids": shown, "meta_info": meta})


async def _whole(writer: asyncio.StreamWriter, answer: Any, status: int) -> None:
    content = json.dumps(answer).encode()
    kind = "application/json" if isinstance(answer, dict) else "text/plain"
    writer.write(f"HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Type: {kind}\r\n".encode())
    writer.write(f"Content-Length: {len(content)}\r\n\r\n".encode())
    writer.write(content)
    await writer.drain()


class Kind(NamedTuple):
    """A kind of server: the engine for it, and its double."""

    engine: type[ServerEngine]
    double: type[Double]


KINDS = {"vllm": Kind(VllmEngine, VllmDouble), "sglang": Kind(SglangEngine, SglangDouble)}
Doubles = Callable[[int], AbstractAsyncContextManager[list[Any]]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def doubles(kind: Kind) -> Doubles:
    """Opens so many of them."""

    @asynccontextmanager
    async def opened(count: int) -> AsyncIterator[list[Any]]:
        servers = [kind.double() for _ in range(count)]
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


@pytest.fixture
def asked(kind: Kind, doubles: Doubles, tokens: Tokens) -> Callable[..., Completion]:
    """What an engine gets from one server with these faults."""

    async def main(sampling: Sampling, token_timeout: float, faults: dict[str, Any]) -> Completion:
        async with doubles(1) as (server,):
            for name, value in faults.items():
                setattr(server, name, value)
            engine = await kind.engine([server.address], tokens, context=64, token_timeout=token_timeout).connect()
            try:
                return await engine.generate([10], sampling)
            finally:
                await engine.close()

    return lambda sampling, *, token_timeout=5.0, **faults: asyncio.run(main(sampling, token_timeout, faults))
