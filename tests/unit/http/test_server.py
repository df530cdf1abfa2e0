"""Servers: bounded request heads, ports and addresses."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sleuth.errors import InputError
from sleuth.http.server import MAX_HEAD_BYTES, BackgroundServer, BoundedHeadProtocol, authority, bind, reachable_host


class Hasty(BoundedHeadProtocol):
    head_seconds = 0.2


async def length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def slow(_: Request) -> Response:
    await asyncio.sleep(0.6)
    return PlainTextResponse("late")


APP = Starlette(routes=[Route("/", length, methods=["GET", "POST"]), Route("/slow", slow)])


@asynccontextmanager
async def serving(protocol: type[BoundedHeadProtocol] = BoundedHeadProtocol) -> AsyncIterator[int]:
    with bind("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(APP, http=protocol, log_config=None, lifespan="off"))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.005)
        yield int(listener.getsockname()[1])
        server.should_exit = True
        await running


async def said(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """All that the server sends until it closes the connection, which may be before all pieces are written."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = bytearray()

    async def read() -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(65_536):
                received.extend(piece)

    reading = asyncio.create_task(read())
    try:
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        await reading
        return bytes(received)
    finally:
        reading.cancel()
        writer.close()


@pytest.mark.parametrize("cut", [0, 1, 30, -3, -2, -1])
def test_large_body_does_not_count_as_head(cut: int) -> None:
    body = b"b" * 300_000
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 300000\r\n\r\n"
    place = cut if cut >= 0 else len(head) + cut

    async def run() -> bytes:
        async with serving() as port:
            pieces = [piece for piece in (head[:place], head[place:] + body) if piece]
            return await said(port, *pieces, pause=0.02)

    assert asyncio.run(run()).endswith(b"\r\n\r\n300000")


def test_one_connection_serves_many_requests_with_bodies_larger_than_a_head() -> None:
    async def run() -> list[str]:
        async with serving() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            return [(await client.post("/", content=b"b" * 200_000)).text for _ in range(5)]

    assert asyncio.run(run()) == ["200000"] * 5


def test_endless_head_gets_408() -> None:
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


def test_idle_connection_is_kept_between_two_requests() -> None:
    async def run() -> bytes:
        async with serving(Hasty) as port:
            whole = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
            return await said(port, whole + b"\r\n", whole + b"connection: close\r\n\r\n", pause=0.5)

    assert asyncio.run(run()).count(b"HTTP/1.1 200 ") == 2


UNREAD = b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n"  # answered without its body
CHUNKED = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param([UNREAD, b"b" * 20, b"GET / HTTP/1.1\r\nx: "], id="the head after a body that nobody read"),
        pytest.param([CHUNKED, b"0\r\nx: "], id="a field after the body"),
        pytest.param([CHUNKED, b"2;x="], id="an extension of a chunk"),
    ],
)
def test_trailers_and_chunk_extensions_are_bounded(begun: list[bytes]) -> None:
    async def run() -> bytes:
        async with serving() as port:
            return await asyncio.wait_for(said(port, *begun, *[b"a" * 10_000] * 50, pause=0.002), 20)

    assert b"HTTP/1.1 431 " in asyncio.run(run())


def test_many_small_chunks_do_not_count_as_head() -> None:
    async def run() -> bytes:
        async with serving() as port:
            return await said(port, CHUNKED, *[b"1\r\na\r\n" * 10_000] * 10, b"0\r\nx: 1\r\n\r\n" + last)

    last = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    answer = asyncio.run(run())
    assert b"\r\n\r\n100002HTTP/1.1 200" in answer


def test_unread_body_does_not_keep_the_connection() -> None:
    async def run() -> bytes:
        async with serving(Hasty) as port:
            return await asyncio.wait_for(said(port, UNREAD, *[b"b"] * 19, pause=0.1), 20)

    assert asyncio.run(run()).startswith(b"HTTP/1.1 404 ")


def test_response_may_take_longer_than_the_head_limit() -> None:
    async def run() -> bytes:
        async with serving(Hasty) as port:
            # A line break after the request, which some clients send.
            return await said(port, b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\r\n", pause=0.05)

    answer = asyncio.run(run())
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"late" in answer


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "localhost", "::1"])
def test_specific_host_is_the_address(host: str) -> None:
    assert reachable_host(host) == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])  # noqa: S104
def test_wildcard_host_becomes_the_address_of_this_machine(host: str) -> None:
    address = ipaddress.ip_address(reachable_host(host))
    assert not address.is_unspecified
    bind(str(address), 0).close()


def test_ipv6_address_is_bracketed() -> None:
    assert authority("::1", 80) == "[::1]:80"
    assert authority("127.0.0.1", 80) == "127.0.0.1:80"


def test_port_0_picks_a_free_port() -> None:
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", 0) as second:
        assert 0 < first.getsockname()[1] != second.getsockname()[1] > 0


def test_port_in_use_is_an_input_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1"):
            bind("127.0.0.1", port)


def test_host_of_another_machine_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"198\.51\.100\.1"):
        bind("198.51.100.1", 0)
    with pytest.raises(InputError, match="'no such host'"):
        bind("no such host", 0)


def test_head_that_is_too_large_is_refused_before_it_is_parsed() -> None:
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
    assert f"{MAX_HEAD_BYTES:,} bytes".encode() in at_once
    assert all(answer.startswith(b"HTTP/1.1 431 ") for answer in others)
    assert well == "0"


def test_background_server_answers_until_it_is_closed() -> None:
    listener = bind("127.0.0.1", 0)
    server, url = BackgroundServer(APP, listener), f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.start()
    assert httpx.get(url).text == "0"
    server.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
