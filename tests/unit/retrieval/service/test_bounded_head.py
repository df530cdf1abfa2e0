"""Heads of requests that are too large or too slow, over real sockets, beside a client that behaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sleuth.retrieval.service.bounded_head import HEAD_BYTES, BoundedHead
from sleuth.retrieval.service.listen import bound


class Hasty(BoundedHead):
    head_seconds = 0.2


async def length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


APP = Starlette(routes=[Route("/", length, methods=["GET", "POST"])])


@asynccontextmanager
async def serving(protocol: type[BoundedHead] = BoundedHead) -> AsyncIterator[int]:
    with bound("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(APP, http=protocol, log_config=None, lifespan="off"))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.005)
        yield int(listener.getsockname()[1])
        server.should_exit = True
        await running


async def said(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """All that the server sends, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read())
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        return await answer
    finally:
        answer.cancel()
        writer.close()


def test_a_head_that_is_too_large_is_refused_before_it_is_parsed() -> None:
    async def run() -> tuple[bytes, list[bytes], str]:
        async with serving() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            start, value = b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ", b"a" * 10_000
            at_once = await said(port, start + value * 50)
            # Piece by piece, and with many fields instead of a long one.
            others = [await said(port, start, *[value] * 50, pause=0.001)]
            others.append(await said(port, start, *[b"".join(b"x-%d: 1\r\n" % number for number in range(2000))] * 10))
            return at_once, others, (await client.get("/")).text

    at_once, others, well = asyncio.run(run())
    assert at_once.startswith(b"HTTP/1.1 431 ")
    assert f"more than {HEAD_BYTES:,} bytes".encode() in at_once
    assert all(answer.startswith(b"HTTP/1.1 431 ") for answer in others)
    assert well == "0"


@pytest.mark.parametrize("cut", [0, 1, 30, -3, -2, -1])
def test_a_large_body_is_no_head_wherever_the_pieces_are_cut(cut: int) -> None:
    body = b"b" * 300_000
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 300000\r\n\r\n"
    place = cut if cut >= 0 else len(head) + cut

    async def run() -> bytes:
        async with serving() as port:
            pieces = [piece for piece in (head[:place], head[place:] + body) if piece]
            return await said(port, *pieces, pause=0.02)

    assert asyncio.run(run()).endswith(b"\r\n\r\n300000")


def test_one_connection_has_many_requests_with_bodies_larger_than_a_head() -> None:
    async def run() -> list[str]:
        async with serving() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            return [(await client.post("/", content=b"b" * 200_000)).text for _ in range(5)]

    assert asyncio.run(run()) == ["200000"] * 5


def test_a_head_that_does_not_end_is_answered_with_408_and_its_connection_closed() -> None:
    async def run() -> tuple[bytes, bytes, bytes]:
        async with serving(Hasty) as port:
            begun = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
            drop = [b"x: 1\r\n"] * 100
            slow = await said(port, begun, *drop, pause=0.01)
            return slow, await said(port), await said(port, begun + b"\r\n", begun, pause=0.1)

    slow, silent, second = asyncio.run(run())
    assert slow.startswith(b"HTTP/1.1 408 ")
    assert silent == b""
    assert second.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in second
    assert b"did not arrive within 0.2 s" in second


def test_an_idle_connection_is_kept_between_two_requests() -> None:
    async def run() -> bytes:
        async with serving(Hasty) as port:
            whole = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
            return await said(port, whole + b"\r\n", whole + b"connection: close\r\n\r\n", pause=0.5)

    assert asyncio.run(run()).count(b"HTTP/1.1 200 ") == 2
