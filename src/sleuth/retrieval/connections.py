"""Connections to one server: a pool for each event loop that uses them, closed when its loop ends."""

import asyncio
import functools
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx

from sleuth.errors import ConfigError

SCHEMES = ("http", "https")
ENDPOINT = "/retrieve"
# Servers of the field (uvicorn) drop a connection that was idle for 5 s; one that is about to go is not used again.
IDLE = 4.0


class Lane:
    """What belongs to one event loop: its slots, each with a connection of its own.

    One pool for all would look at every connection it has, several times a request.
    """

    def __init__(self, slots: int, connect: Callable[[], httpx.AsyncClient]) -> None:
        self._free = asyncio.Semaphore(slots)
        self._connect = connect
        self._opened: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[httpx.AsyncClient]:
        """Waits for a free slot, first come first served; its connection is the one used last."""
        async with self._free:
            http = self._idle.pop() if self._idle else self._open()
            try:
                yield http
            finally:
                self._idle.append(http)

    async def aclose(self) -> None:
        for http in self._opened:
            await http.aclose()

    def _open(self) -> httpx.AsyncClient:
        self._opened.append(self._connect())
        return self._opened[-1]


class Connections:
    """Lanes to a server, one a loop, each with so many slots; no request has a time-out but the caller's.

    Proxies are used only where given: one that the environment names for the outer world rarely knows this server.
    """

    def __init__(self, slots: int, token: str | None, proxy: str | None) -> None:
        self._slots = slots
        self._headers = {"content-type": "application/json"} | _authorization(token)
        self._proxy = _proxy(proxy)
        self._trusted = _trusted()
        self._lanes: dict[asyncio.AbstractEventLoop, tuple[Lane, AsyncGenerator[Lane, None]]] = {}

    async def lane(self) -> Lane:
        """The lane of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._lanes:
            self._lanes = {each: lane for each, lane in self._lanes.items() if not each.is_closed()}
            keeper = self._keep(loop)
            # The generator reaches its yield without a pause, so no other task comes between.
            self._lanes[loop] = await anext(keeper), keeper
        return self._lanes[loop][0]

    async def aclose(self) -> None:
        """Closes the lane of the running loop."""
        _, keeper = self._lanes.get(asyncio.get_running_loop(), (None, None))
        if keeper is not None:
            await keeper.aclose()

    async def _keep(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Lane, None]:
        """Yields once; a loop that ends closes the generators started in it, and so the lane here."""
        lane = Lane(self._slots, self._connect)
        try:
            yield lane
        finally:
            self._lanes.pop(loop, None)
            await lane.aclose()

    def _connect(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers=self._headers,
            proxy=self._proxy,
            verify=self._trusted,
            trust_env=False,
            timeout=httpx.Timeout(None),
            limits=httpx.Limits(keepalive_expiry=IDLE),
        )


def endpoint(url: str) -> str:
    """The address requests go to: a url without a path is a server's root, any other the endpoint itself."""
    expected = "expected one like http://127.0.0.1:8000"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"the url {url!r} cannot be read ({error}); {expected}") from None
    if parsed.userinfo:
        raise ConfigError("the url of the search server holds a user or password; give a token instead")
    if parsed.scheme not in SCHEMES or not parsed.host:
        raise ConfigError(f"the url {url!r} is not of a search server; {expected}")
    return str(parsed.copy_with(path=ENDPOINT) if parsed.path in ("", "/") else parsed)


def _proxy(url: str | None) -> httpx.Proxy | None:
    """The proxy, if any; its url may hold a password and is not repeated in errors."""
    if url is None:
        return None
    expected = "expected one like http://127.0.0.1:3128"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise ConfigError(f"the url of the proxy cannot be read; {expected}") from None
    if parsed.scheme not in SCHEMES or not parsed.host:
        raise ConfigError(f"the proxy has the scheme {parsed.scheme!r} and the host {parsed.host!r}; {expected}")
    return httpx.Proxy(parsed, ssl_context=_trusted() if parsed.scheme == "https" else None)


def _authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise ConfigError("the token is blank or holds characters a header cannot carry; give it without line ends")
    return {"authorization": f"Bearer {token}"}


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The certificates trusted, those of SSL_CERT_FILE where set; read once, since that takes longer than a search."""
    return httpx.create_ssl_context()
