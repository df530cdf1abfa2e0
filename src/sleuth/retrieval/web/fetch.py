"""Pages of the web, fetched so that no page, redirect or name server can turn the request against our own network."""

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import Message
from ipaddress import IPv4Address, ip_address

import httpx

from sleuth import __version__
from sleuth.errors import SleuthError
from sleuth.retrieval.service.road import proxy_at, transport
from sleuth.retrieval.web.public import Address, public

REDIRECTS = 5
WEB_PORTS = frozenset({80, 443, 8080, 8443})
MARKUP = frozenset({"text/html", "application/xhtml+xml"})
MEDIA = MARKUP | {"text/plain"}
GZIP = frozenset({"gzip", "x-gzip"})
HEADERS = {
    "User-Agent": f"sleuth/{__version__}",
    "Accept": "text/html, application/xhtml+xml, text/plain",
    "Accept-Encoding": "gzip",
    "Connection": "close",
}

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it came; `url` is where the redirects led, `charset` what the server says of its encoding."""

    url: str
    content: bytes
    markup: bool
    charset: str = ""


@dataclass(frozen=True, slots=True)
class FetchRefused:
    """A page we will not read: where it lies, what it is, or how large."""

    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A page we could not read."""

    url: str
    reason: str


class _Refusal(SleuthError):
    """Ends a fetch for a reason of ours."""


class _Fault(SleuthError):
    """Ends a fetch for a reason of the server's."""


async def resolved(host: str, port: int) -> list[str]:
    """The addresses of a host, as the operating system has them; it also reads 0x7f.1 and 2130706433 as addresses."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Fetcher:
    """Fetches pages from addresses that are permitted, within one deadline a page and a size, decompressed too.

    A name is resolved once a request, every address it has must be permitted, and the connection is made to one of
    these: a name that resolves otherwise a moment later gains nothing. The same holds for every redirect.

    Through a proxy it is the proxy that resolves and connects. The name is still checked by our own resolution, but
    only the proxy's rules can stop a name that resolves differently over there.
    """

    def __init__(
        self,
        *,
        limit_bytes: int = 2_000_000,
        deadline: float = 10.0,
        proxy: str | None = None,
        permitted: Callable[[Address], bool] = public,
        ports: Collection[int] | None = WEB_PORTS,
        resolve: Resolve = resolved,
    ) -> None:
        self._limit = limit_bytes
        self._deadline = deadline
        self._proxy = proxy_at(proxy)
        self._permitted = permitted
        self._ports = ports
        self._resolve = resolve

    async def fetch(self, url: str) -> Page | FetchRefused | FetchFailed:
        """The page at a url, or why there is none; never takes longer than the deadline."""
        try:
            async with asyncio.timeout(self._deadline), self._client() as client:
                return await self._followed(client, httpx.URL(url))
        except (_Refusal, httpx.InvalidURL) as refusal:
            return FetchRefused(url, str(refusal))
        except TimeoutError:
            return FetchFailed(url, f"no whole page within {self._deadline:g} s")
        except (_Fault, httpx.HTTPError, OSError, UnicodeError, zlib.error) as error:
            return FetchFailed(url, str(error) or type(error).__name__)

    def _client(self) -> httpx.AsyncClient:
        """A client for one page: connections made by address must not be shared by names."""
        return httpx.AsyncClient(transport=transport(self._proxy), headers=HEADERS, timeout=self._deadline)

    async def _followed(self, client: httpx.AsyncClient, url: httpx.URL) -> Page:
        for _ in range(REDIRECTS + 1):
            async with self._opened(client, url) as response:
                if not response.has_redirect_location:
                    return await self._page(url, response)
                url = url.join(response.headers["location"])
        raise _Refusal(f"more than {REDIRECTS} redirects")

    @asynccontextmanager
    async def _opened(self, client: httpx.AsyncClient, url: httpx.URL) -> AsyncIterator[httpx.Response]:
        self._check(url)
        addresses = await self._addresses(url)
        response = await (self._direct(client, url, addresses) if self._proxy is None else _sent(client, url))
        try:
            yield response
        finally:
            await response.aclose()

    def _check(self, url: httpx.URL) -> None:
        if url.scheme not in ("http", "https"):
            raise _Refusal(f"the scheme {url.scheme!r} is neither http nor https")
        if url.userinfo:
            raise _Refusal("the url holds a user name or password")
        if not url.host:
            raise _Refusal("the url names no host")
        if self._ports is not None and _port(url) not in self._ports:
            raise _Refusal(f"port {_port(url)} is not one of the web's")

    async def _addresses(self, url: httpx.URL) -> list[Address]:
        """The addresses of a url's host, IPv4 first; one that is not permitted makes all of them refused."""
        addresses = [ip_address(each) for each in await self._resolve(url.raw_host.decode("ascii"), _port(url))]
        if not addresses:
            raise _Fault(f"{url.host} has no address")
        for address in addresses:
            if not self._permitted(address):
                raise _Refusal(f"{url.host} is at {address}, which is not on the public internet")
        return sorted(addresses, key=lambda address: not isinstance(address, IPv4Address))

    async def _direct(self, client: httpx.AsyncClient, url: httpx.URL, addresses: list[Address]) -> httpx.Response:
        """The answer of the first of the checked addresses that takes a connection."""
        *others, last = addresses
        for address in others:
            try:
                return await _sent(client, url, address, wait=self._deadline / len(addresses))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await _sent(client, url, last)

    async def _page(self, url: httpx.URL, response: httpx.Response) -> Page:
        if not response.is_success:
            raise _Fault(f"status {response.status_code}")
        media, charset = _content_type(response)
        if media not in MEDIA:
            raise _Refusal(f"its content is {media or 'of no stated type'}, expected {', '.join(sorted(MEDIA))}")
        return Page(str(url), await self._body(response), media in MARKUP, charset)

    async def _body(self, response: httpx.Response) -> bytes:
        """The whole body, decompressed; unpacked piece by piece, so that no more than the limit ever exists."""
        unpack = _unpacker(response.headers.get("content-encoding", ""))
        body, received = bytearray(), 0
        async for chunk in response.aiter_raw():
            received += len(chunk)
            body += chunk if unpack is None else unpack.decompress(chunk, self._limit + 1 - len(body))
            if max(received, len(body)) > self._limit:
                raise _Refusal(f"it is larger than {self._limit} bytes")
        if unpack is not None and body and not unpack.eof:
            raise _Fault("its compressed content breaks off")
        return bytes(body)


async def _sent(
    client: httpx.AsyncClient, url: httpx.URL, address: Address | None = None, wait: float | None = None
) -> httpx.Response:
    """Asks for a url, at that address where one is given: header and TLS then still speak of the url's own host."""
    request = client.build_request("GET", url if address is None else url.copy_with(host=str(address)))
    request.headers["Host"] = url.netloc.decode("ascii")
    request.extensions["sni_hostname"] = url.raw_host.decode("ascii")
    if wait is not None:
        request.extensions["timeout"]["connect"] = wait
    return await client.send(request, stream=True)


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _content_type(response: httpx.Response) -> tuple[str, str]:
    """The media type and the name of the encoding, each "" where none is stated."""
    header = Message()
    header["content-type"] = response.headers.get("content-type", "")
    return header["content-type"].partition(";")[0].strip().lower(), header.get_content_charset() or ""


def _unpacker(encoding: str) -> "zlib._Decompress | None":
    """What undoes the encoding of a body, None where nothing is to undo."""
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case name if name in GZIP:
            return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        case other:
            raise _Refusal(f"its content is encoded as {other!r}, expected gzip or nothing")
