"""The server under load: many clients at once on loopback, against a handler that takes one request at a time."""

import asyncio
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import numpy as np
from fastapi import FastAPI

from sleuth.errors import SearchUnavailable, SleuthError
from sleuth.http.server import bind, serve
from sleuth.retrieval.retriever import Retriever
from sleuth.retrieval.service.server import Facts, application
from sleuth.retrieval.wire import Limits, RetrieveRequest, scored_row

Opener = Callable[[], Retriever]  # makes the retriever in the process of its server; it travels there by pickle

HOST = "127.0.0.1"
K = 3

# A new interpreter for each part: what the parts have open, threads and devices above all, does not survive a fork.
PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Load:
    """What clients saw of one server: each sends its next query when it has the answer to the last."""

    server: str
    clients: int
    seconds: float
    answered: int
    errors: int
    queries_per_second: float
    p50_ms: float
    p99_ms: float


def compare(opener: Opener, queries: Sequence[str], *, clients: int = 256, seconds: float = 60.0) -> list[Load]:
    """The gathering server and the naive one under the same load, one after the other, each in a process of its own.

    Their answers to every query are compared first; a difference is an error.
    """
    loads, answers = [], []
    for name in SERVERS:
        with _serving(name, opener) as port:
            answers.append(asyncio.run(_all_answers(port, queries)))
            loads.append(_loaded(name, port, list(queries), clients, seconds))
    if answers[0] != answers[1]:
        raise SleuthError("the two servers gave different hits; the comparison would mean nothing")
    return loads


def gathering(retriever: Retriever) -> FastAPI:
    """Our own server."""
    return application(retriever, Facts("bench", "bench", 0), k=K, limits=Limits())


def naive(retriever: Retriever) -> FastAPI:
    """The handler that copies of the field's server have: a lock, and one unbatched search inside it."""
    app, lock = FastAPI(), asyncio.Lock()

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest) -> dict[str, Any]:
        async with lock:
            answers = await retriever.search(request.queries, request.topk or K)
        return {
            "result": [[] if isinstance(each, SearchUnavailable) else list(map(scored_row, each)) for each in answers]
        }

    return app


SERVERS: dict[str, Callable[[Retriever], FastAPI]] = {"gathering": gathering, "one at a time": naive}


@contextmanager
def _serving(name: str, opener: Opener) -> Iterator[int]:
    """A server in a process of its own; yields its port once it answers."""
    ours, its = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_serve, args=(name, opener, its), daemon=True)
    process.start()
    its.close()
    try:
        yield ours.recv()
    except EOFError:
        raise SleuthError(f"the server {name!r} ended before it was ready; what it printed says why") from None
    finally:
        process.terminate()
        process.join()


def _serve(name: str, opener: Opener, parent: "Connection[int, int]") -> None:
    listener = bind(HOST, 0)
    serve(SERVERS[name](opener()), listener, lambda: parent.send(listener.getsockname()[1]))


def _loaded(name: str, port: int, queries: list[str], clients: int, seconds: float) -> Load:
    """Load from a process of its own, so that making it does not slow what is measured more than a client would."""
    with PROCESSES.Pool(1) as pool:
        times, errors = pool.apply(_run_clients, (port, queries, clients, seconds))
    p50, p99 = np.percentile(times, [50, 99]) * 1000 if times else (float("nan"),) * 2
    return Load(name, clients, seconds, len(times), errors, len(times) / seconds, float(p50), float(p99))


def _run_clients(port: int, queries: list[str], clients: int, seconds: float) -> tuple[list[float], int]:
    return asyncio.run(_clients(port, queries, clients, seconds))


async def _clients(port: int, queries: list[str], clients: int, seconds: float) -> tuple[list[float], int]:
    """Times of the answers that came whole, and how many did not."""
    loop = asyncio.get_running_loop()
    requests = [_request(port, [query]) for query in queries]
    protocols = [_Client(requests, number * len(requests) // clients) for number in range(clients)]
    for client in protocols:
        await loop.create_connection(lambda client=client: client, HOST, port)  # type: ignore[misc]
    for client in protocols:
        client.begin()
    await asyncio.sleep(seconds)
    ended = perf_counter()
    for client in protocols:
        client.stop()
    times = [time for client in protocols for moment, time in client.answered if moment <= ended]
    return times, sum(client.errors for client in protocols)


class _Client(asyncio.Protocol):
    """One client on one connection: bytes made beforehand, and of an answer only its head read."""

    def __init__(self, requests: list[bytes], first: int) -> None:
        self._requests = requests
        self._next = first
        self._received = bytearray()
        self._stopped = False
        self.answered: list[tuple[float, float]] = []
        self.errors = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def begin(self) -> None:
        self._sent = perf_counter()
        self._transport.write(self._requests[self._next % len(self._requests)])
        self._next += 1

    def stop(self) -> None:
        self._stopped = True
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        whole = _whole(self._received)
        if whole is None:
            return
        now = perf_counter()
        if whole:
            self.answered.append((now, now - self._sent))
        else:
            self.errors += 1
        self._received.clear()
        if not self._stopped:
            self.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.errors += not self._stopped


def _whole(received: bytearray) -> bool | None:
    """Whether a whole answer is a good one; None while it is not whole."""
    head = received.find(b"\r\n\r\n")
    if head < 0:
        return None
    start = received.lower().find(b"content-length:", 0, head) + len(b"content-length:")
    length = int(received[start : received.find(b"\r", start)])
    if len(received) < head + 4 + length:
        return None
    return received.startswith(b"HTTP/1.1 200") and received.startswith(b'{"result":[[', head + 4)


def _request(port: int, queries: list[str]) -> bytes:
    body = json.dumps({"queries": queries, "topk": K, "return_scores": True}).encode()
    head = f"POST /retrieve HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _all_answers(port: int, queries: Sequence[str]) -> object:
    """What a server answers to every query, asked together."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(_request(port, list(queries)).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])
