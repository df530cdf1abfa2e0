"""Web page fetching, protected against server-side request forgery: connects to public addresses only."""

import asyncio
import socket
import zlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from email.message import Message
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import httpx

from sleuth import __version__
from sleuth.corpus.decoding import decode, decode_html
from sleuth.errors import SleuthError
from sleuth.http.connections import make_transport, parse_proxy

MAX_REDIRECTS = 5
WEB_PORTS = frozenset({80, 443, 8080, 8443})
HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
MEDIA_TYPES = HTML_TYPES | {"text/plain"}
HEADERS = {
    "User-Agent": f"sleuth/{__version__}",
    "Accept": "text/html, application/xhtml+xml, text/plain",
    "Accept-Encoding": "gzip",
    "Connection": "close",
}

# Entries of IANA's special-purpose registries that `is_global` lacks, or treats differently between Python versions.
RESERVED_V4 = tuple(
    map(IPv4Network, ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "224.0.0.0/3"))
)
GLOBAL_V6 = IPv6Network("2000::/3")  # the only range from which public IPv6 addresses are assigned
RESERVED_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
# IPv6 ranges that embed an IPv4 address, and the number of bits after it: mapped, NAT64 (RFC 6052), 6to4 (RFC 3056).
EMBEDDED_V4 = {IPv6Network("::ffff:0:0/96"): 0, IPv6Network("64:ff9b::/96"): 0, IPv6Network("2002::/16"): 80}

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Page:
    """A fetched page; `url` is the final URL after redirects, `charset` the encoding declared by the server."""

    url: str
    content: bytes
    markup: bool
    charset: str = ""

    @property
    def text(self) -> str:
        """Decode the content by its byte order mark or declared encoding."""
        return decode_html(self.content, self.charset) if self.markup else decode(self.content, self.charset)


class FetchRefused(SleuthError):
    """A page that may not be fetched because of its address, type or size; returned as a value."""


class FetchFailed(SleuthError):
    """A page that could not be fetched; returned as a value."""


async def resolve_host(host: str, port: int) -> list[str]:
    """Resolve a host with the operating system, which also accepts 0x7f.1 and 2130706433 as addresses."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(address: Address) -> bool:
    """Whether an address, or the IPv4 address embedded in it, is on the public internet."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in RESERVED_V4)
    for network, shift in EMBEDDED_V4.items():
        if address in network:
            return is_public(IPv4Address(int(address) >> shift & 0xFFFFFFFF))
    # A scope (fe80::1%eth0) ties an address to a network of this machine.
    is_global = address.scope_id is None and address in GLOBAL_V6 and address.is_global
    return is_global and not any(address in network for network in RESERVED_V6)


class Fetcher:
    """Fetches pages from permitted addresses, within a deadline and a size limit that holds after decompression.

    A host is resolved once per request, all of its addresses must be permitted, and the connection goes to one of
    them, so that DNS rebinding has no effect. Redirects are checked in the same way. With a proxy, the host is
    resolved and checked here, but the proxy resolves it again and must enforce its own rules.
    """

    def __init__(
        self,
        *,
        limit_bytes: int = 2_000_000,
        deadline: float = 10.0,
        proxy: str | None = None,
        permitted: Callable[[Address], bool] = is_public,
        ports: Collection[int] | None = WEB_PORTS,
        resolve: Resolve = resolve_host,
    ) -> None:
        self._limit, self._deadline, self._proxy = limit_bytes, deadline, parse_proxy(proxy)
        self._permitted, self._ports, self._resolve = permitted, ports, resolve

    async def fetch(self, url: str) -> Page | FetchRefused | FetchFailed:
        """Fetch a page, following redirects, within the deadline."""
        try:
            # One client per page: connections made by address must not be shared between host names.
            client = httpx.AsyncClient(transport=make_transport(self._proxy), headers=HEADERS, timeout=self._deadline)
            async with asyncio.timeout(self._deadline), client:
                target = httpx.URL(url)
                for _ in range(MAX_REDIRECTS + 1):
                    async with aclosing(await self._open(client, target)) as response:
                        if not response.has_redirect_location:
                            return await self._read(target, response)
                        target = target.join(response.headers["location"])
            return FetchRefused(f"more than {MAX_REDIRECTS} redirects")
        except (FetchRefused, FetchFailed) as outcome:
            return outcome
        except httpx.InvalidURL as error:
            return FetchRefused(str(error))
        except TimeoutError:
            return FetchFailed(f"not complete within {self._deadline:g} s")
        except (httpx.HTTPError, OSError, UnicodeError, zlib.error) as error:
            return FetchFailed(str(error) or type(error).__name__)

    async def _open(self, client: httpx.AsyncClient, url: httpx.URL) -> httpx.Response:
        """Return the response of the first permitted address that accepts a connection, IPv4 first."""
        port = url.port or (443 if url.scheme == "https" else 80)
        if url.scheme not in ("http", "https"):
            raise FetchRefused(f"the scheme is {url.scheme!r}, expected http or https")
        if url.userinfo:
            raise FetchRefused("the URL contains a user name or password")
        if not url.host:
            raise FetchRefused("the URL has no host")
        if self._ports is not None and port not in self._ports:
            raise FetchRefused(f"port {port} is not a web port")
        addresses = [ip_address(each) for each in await self._resolve(url.raw_host.decode("ascii"), port)]
        if not addresses:
            raise FetchFailed(f"{url.host} has no address")
        for address in addresses:
            if not self._permitted(address):
                raise FetchRefused(f"{url.host} is at {address}, which is not on the public internet")
        if self._proxy is not None:
            return await _send(client, url)
        *others, last = sorted(addresses, key=lambda address: not isinstance(address, IPv4Address))
        for address in others:
            try:
                return await _send(client, url, address, connect_seconds=self._deadline / len(addresses))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await _send(client, url, last)

    async def _read(self, url: httpx.URL, response: httpx.Response) -> Page:
        if not response.is_success:
            raise FetchFailed(f"status {response.status_code}")
        header = Message()
        header["content-type"] = response.headers.get("content-type", "")
        media_type = header["content-type"].partition(";")[0].strip().lower()
        if media_type not in MEDIA_TYPES:
            expected = ", ".join(sorted(MEDIA_TYPES))
            raise FetchRefused(f"the content type is {media_type or 'missing'}, expected {expected}")
        # Decompressed piece by piece, so that the body never exceeds the limit in memory.
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise FetchRefused(f"the content encoding is {encoding!r}, expected gzip or none")
        decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16) if "gzip" in encoding else None
        body, received = bytearray(), 0
        async for chunk in response.aiter_raw():
            received += len(chunk)
            body += chunk if decompressor is None else decompressor.decompress(chunk, self._limit + 1 - len(body))
            if max(received, len(body)) > self._limit:
                raise FetchRefused(f"the page is larger than {self._limit} bytes")
        if decompressor is not None and body and not decompressor.eof:
            raise FetchFailed("the compressed content is incomplete")
        return Page(str(url), bytes(body), media_type in HTML_TYPES, header.get_content_charset() or "")


async def _send(
    client: httpx.AsyncClient, url: httpx.URL, address: Address | None = None, connect_seconds: float | None = None
) -> httpx.Response:
    """Request a URL, optionally from a given address; the Host header and TLS still use the host of the URL."""
    request = client.build_request("GET", url if address is None else url.copy_with(host=str(address)))
    request.headers["Host"] = url.netloc.decode("ascii")
    request.extensions["sni_hostname"] = url.raw_host.decode("ascii")
    if connect_seconds is not None:
        request.extensions["timeout"]["connect"] = connect_seconds
    return await client.send(request, stream=True)
