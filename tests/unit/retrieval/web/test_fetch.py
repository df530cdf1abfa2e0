"""Fetching of pages from the public web only."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from itertools import chain, repeat
from typing import Any

import pytest

from sleuth.retrieval.web.fetch import Address, Fetcher, FetchFailed, FetchRefused, Page, is_public

Fetched = Page | FetchRefused | FetchFailed
HTML = b"<html><title>Oslo</title><p>Oslo is the capital.</p></html>"

PRIVATE = [
    "0.0.0.0",  # noqa: S104
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.254",
    "127.0.0.1",
    "127.8.8.8",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.9",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:7f00:1::",
    "2001:0:808:808::f7f7:f7f7",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2002:c0a8:101::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700::1111%eth0",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_on_the_public_internet(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_public_internet(address: str) -> None:
    assert is_public(ip_address(address))


class Names:
    """A name server: what it answers, one list after the other, the last one for ever; what it was asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = chain(answers, repeat(answers[-1]))
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return next(self._answers)


def anything(address: Address) -> bool:
    return True


def fetched(fetcher: Fetcher, url: str) -> Fetched:
    return asyncio.run(fetcher.fetch(url))


@pytest.mark.parametrize("address", PRIVATE)
def test_host_at_a_private_address_is_refused(address: str) -> None:
    outcome = fetched(Fetcher(resolve=Names([address])), "http://pages.example/")
    assert isinstance(outcome, FetchRefused)
    assert "not on the public internet" in str(outcome)


def test_one_private_address_is_enough_to_refuse() -> None:
    outcome = fetched(Fetcher(resolve=Names(["93.184.216.34", "10.0.0.1"])), "https://pages.example/")
    assert isinstance(outcome, FetchRefused)


# Resolved by the operating system, as users would.
@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/",
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://017700000001/",
        "http://0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://169.254.169.254/latest/meta-data/",
        "https://10.0.0.1/",
    ],
)
def test_every_spelling_of_a_private_address_is_refused(url: str) -> None:
    outcome = fetched(Fetcher(), url)
    assert isinstance(outcome, FetchRefused)
    assert "not on the public internet" in str(outcome)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "expected http or https"),
        ("ftp://pages.example/", "expected http or https"),
        ("gopher://pages.example/", "expected http or https"),
        ("javascript:alert(1)", "expected http or https"),
        ("//pages.example/", "expected http or https"),
        ("", "expected http or https"),
        ("http:///path", "no host"),
        ("http://user@pages.example/", "user name or password"),
        ("http://user:secret@pages.example/", "user name or password"),
        ("http://pages.example:22/", "port 22"),
        ("https://pages.example:6379/", "port 6379"),
        ("http://pages.example\n.internal/", "non-printable"),
        ("http://0177.0.0.1/", "IPv4"),
        ("http://[::1/", ""),
        ("http://pages.example:99999/", "port"),
    ],
)
def test_urls_refused_before_resolution(url: str, reason: str) -> None:
    names = Names(["93.184.216.34"])
    outcome = fetched(Fetcher(resolve=names), url)
    assert isinstance(outcome, FetchRefused)
    assert reason in str(outcome)
    assert names.asked == []


@pytest.mark.parametrize("url", ["http://pages.example/", "https://pages.example:8443/"])
def test_name_without_address_is_a_failure(url: str) -> None:
    assert isinstance(fetched(Fetcher(resolve=Names([])), url), FetchFailed)


def test_name_that_cannot_be_resolved_is_a_failure() -> None:
    assert isinstance(fetched(Fetcher(), f"http://{'a' * 70}.invalid/"), FetchFailed)


Reply = Callable[[str], bytes]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(talk: Talk) -> AsyncIterator[int]:
    """A server on a port of its own; connections that break off are the client's right."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def served(reply: Reply, path: str = "/", heads: list[str] | None = None, **settings: Any) -> Fetched:
    """What a fetcher, to which loopback is permitted, makes of a server's replies."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if heads is not None:
            heads.append(head)
        writer.write(reply(head.split()[1]))
        await writer.drain()

    return against(talk, path, **settings)


def against(talk: Talk, path: str = "/", host: str = "127.0.0.1", scheme: str = "http", **settings: Any) -> Fetched:
    async def run() -> Fetched:
        async with listening(talk) as port:
            options = {"permitted": anything, "ports": None, "deadline": 5.0} | settings
            return await Fetcher(**options).fetch(f"{scheme}://{host}:{port}{path}")

    return asyncio.run(run())


def answer(body: bytes, *headers: str, status: str = "200 OK", media: str | None = "text/html") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    lines += [] if media is None else [f"Content-Type: {media}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@pytest.mark.parametrize(
    ("media", "markup", "charset"),
    [
        ("text/html", True, ""),
        ("application/xhtml+xml; charset=", True, ""),
        ("TEXT/HTML; charset=UTF-8", True, "utf-8"),
        ('text/plain;charset="windows-1250"', False, "windows-1250"),
    ],
)
def test_page_is_fetched_unchanged(media: str, markup: bool, charset: str) -> None:
    page = served(lambda _: answer(HTML, media=media))
    assert isinstance(page, Page)
    assert (page.content, page.markup, page.charset) == (HTML, markup, charset)


@pytest.mark.parametrize("media", ["application/pdf", "image/png", "application/json", "nonsense", None])
def test_other_content_types_are_refused(media: str | None) -> None:
    outcome = served(lambda _: answer(HTML, media=media))
    assert isinstance(outcome, FetchRefused)
    assert "expected application/xhtml+xml, text/html, text/plain" in str(outcome)


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops", "304 Not Modified", "300 Multiple Choices"])
def test_status_other_than_success_is_a_failure(status: str) -> None:
    outcome = served(lambda _: answer(HTML, status=status))
    assert isinstance(outcome, FetchFailed)
    assert str(outcome) == f"status {status.split()[0]}"


def test_loopback_server_is_refused_by_default() -> None:
    heads: list[str] = []
    outcome = served(lambda _: answer(HTML), heads=heads, permitted=is_public)
    assert isinstance(outcome, FetchRefused)
    assert heads == []


def test_connection_uses_the_checked_address_and_the_host_name() -> None:
    """Rebinding: a name that is public when it is checked and private when it is connected to."""
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    checked: list[Address] = []
    heads: list[str] = []

    def permitted(address: Address) -> bool:
        checked.append(address)
        return True

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer(HTML))

    page = against(talk, "/a?b=c", host="bücher.example", resolve=names, permitted=permitted)
    assert isinstance(page, Page)
    assert names.asked == ["xn--bcher-kva.example"]
    assert checked == [ip_address("127.0.0.1")]
    assert heads[0].startswith("GET /a?b=c HTTP/1.1\r\n")
    assert "\r\nHost: xn--bcher-kva.example:" in heads[0]
    assert page.url.startswith("http://xn--bcher-kva.example:")


def test_tls_uses_the_host_name() -> None:
    greetings: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greetings.append(await reader.read(4096))

    outcome = against(talk, host="pages.example", scheme="https", resolve=Names(["127.0.0.1"]))
    assert isinstance(outcome, FetchFailed)
    assert b"pages.example" in greetings[0]


def test_next_address_is_tried_after_a_refused_connection() -> None:
    page = served(lambda _: answer(HTML), resolve=Names(["::1", "127.0.0.2", "127.0.0.1"]))
    assert isinstance(page, Page)


def test_refused_connection_is_a_failure() -> None:
    outcome = fetched(Fetcher(permitted=anything, ports=None), "http://127.0.0.1:1/")
    assert isinstance(outcome, FetchFailed)


def moved(location: str, status: str = "302 Found") -> bytes:
    return answer(b"", f"Location: {location}", status=status)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Same", "308 Permanent"])
def test_redirects_are_followed(status: str) -> None:
    page = served(lambda path: answer(HTML) if path == "/there?x=1" else moved("/there?x=1", status))
    assert isinstance(page, Page)
    assert page.url.endswith("/there?x=1")


@pytest.mark.parametrize(
    "location",
    [
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "//192.168.0.1/",
        "file:///etc/passwd",
        "http://user:secret@pages.example/",
        "http://pages.example:22/",
    ],
)
def test_redirect_is_checked_as_a_url_is(location: str) -> None:
    """Only the first server's own address and port are permitted here."""

    async def run() -> Fetched:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(moved(location))

        async with listening(talk) as port:
            fetcher = Fetcher(permitted=lambda address: str(address) == "127.0.0.1", ports={80, 443, port})
            return await fetcher.fetch(f"http://127.0.0.1:{port}/")

    assert isinstance(asyncio.run(run()), FetchRefused)


@pytest.mark.parametrize("location", ["http://[::1/", "http://pages.example:99999/", "http://0177.0.0.1/"])
def test_redirect_to_what_is_no_url_is_a_failure(location: str) -> None:
    assert isinstance(served(lambda _: moved(location)), FetchFailed)


def test_redirect_to_a_name_that_became_private_is_refused() -> None:
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    outcome = served(lambda _: moved("/again"), resolve=names, permitted=lambda each: str(each) == "127.0.0.1")
    assert isinstance(outcome, FetchRefused)
    assert "10.0.0.1" in str(outcome)


def test_redirects_without_end_are_refused() -> None:
    heads: list[str] = []
    outcome = served(lambda path: moved(f"{path}x"), heads=heads)
    assert isinstance(outcome, FetchRefused)
    assert str(outcome) == "more than 5 redirects"
    assert len(heads) == 6


def test_five_redirects_are_not_too_many() -> None:
    page = served(lambda path: answer(HTML) if path == "/xxxxx" else moved(f"{path}x"))
    assert isinstance(page, Page)


def test_page_of_exactly_the_limit_is_read_and_one_byte_more_is_refused() -> None:
    page = served(lambda _: answer(b"x" * 10_000), limit_bytes=10_000)
    assert isinstance(page, Page)
    outcome = served(lambda _: answer(b"x" * 10_001), limit_bytes=10_000)
    assert isinstance(outcome, FetchRefused)
    assert "10000 bytes" in str(outcome)


def test_body_without_end_is_refused_while_it_comes() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
            await writer.drain()

    assert isinstance(against(talk, limit_bytes=100_000), FetchRefused)


def test_compressed_pages_are_read() -> None:
    page = served(lambda _: answer(gzip.compress(HTML), "Content-Encoding: gzip"))
    assert isinstance(page, Page)
    assert page.content == HTML


def test_limit_holds_for_what_was_compressed() -> None:
    bomb = answer(gzip.compress(b"x" * 50_000_000), "Content-Encoding: gzip")
    assert len(bomb) < 60_000
    tracemalloc.start()
    try:
        outcome = served(lambda _: bomb, limit_bytes=1_000_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(outcome, FetchRefused)
    assert "larger than 1000000 bytes" in str(outcome)
    assert most < 10_000_000


def test_endless_empty_compressed_stream_is_refused() -> None:
    pack = zlib.compressobj(wbits=31)
    empty = pack.compress(b"x") + b"".join(pack.flush(zlib.Z_FULL_FLUSH) for _ in range(40_000))
    outcome = served(lambda _: answer(empty, "Content-Encoding: gzip"), limit_bytes=len(empty) // 2)
    assert isinstance(outcome, FetchRefused)


@pytest.mark.parametrize("body", [b"not gzip at all", gzip.compress(HTML)[:-9]], ids=["other", "cut off"])
def test_broken_compression_is_a_failure(body: bytes) -> None:
    assert isinstance(served(lambda _: answer(body, "Content-Encoding: gzip")), FetchFailed)


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip"])
def test_other_encodings_are_refused(encoding: str) -> None:
    outcome = served(lambda _: answer(HTML, f"Content-Encoding: {encoding}"))
    assert isinstance(outcome, FetchRefused)


def test_body_that_breaks_off_is_a_failure() -> None:
    outcome = served(lambda _: answer(HTML)[:-10])
    assert isinstance(outcome, FetchFailed)


def test_invalid_http_is_a_failure() -> None:
    assert isinstance(served(lambda _: b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), FetchFailed)


def test_slow_body_ends_at_the_deadline() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    outcome = against(talk, deadline=0.2)
    assert isinstance(outcome, FetchFailed)
    assert "0.2 s" in str(outcome)


def test_slow_dns_ends_at_the_deadline() -> None:
    async def silent(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    outcome = fetched(Fetcher(resolve=silent, deadline=0.1), "http://pages.example/")
    assert isinstance(outcome, FetchFailed)


def through_proxy(heads: list[str], names: Names) -> Fetched:
    """The outcome for http://pages.example/a where the proxy answers every request itself."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer(HTML))

    async def run() -> Fetched:
        async with listening(talk) as port:
            fetcher = Fetcher(proxy=f"http://127.0.0.1:{port}", resolve=names)
            return await fetcher.fetch("http://pages.example/a")

    return asyncio.run(run())


def test_through_a_proxy_the_name_is_passed_on() -> None:
    heads: list[str] = []
    assert isinstance(through_proxy(heads, Names(["93.184.216.34"])), Page)
    assert heads[0].startswith("GET http://pages.example/a HTTP/1.1\r\n")
    assert "\r\nHost: pages.example\r\n" in heads[0]


def test_through_a_proxy_names_are_checked_by_our_own_resolution() -> None:
    heads: list[str] = []
    assert isinstance(through_proxy(heads, Names(["10.0.0.1"])), FetchRefused)
    assert heads == []


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert isinstance(served(lambda _: answer(HTML)), Page)
