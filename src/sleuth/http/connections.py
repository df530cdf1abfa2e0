"""Outgoing connections: one pool per event loop, proxies, trusted certificates, rate and concurrency limits."""

import asyncio
import functools
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import httpx

from sleuth.errors import ConfigError

# uvicorn closes connections that were idle for 5 s; connections close to that age are not reused.
IDLE_SECONDS = 4.0
# Timers fire a few milliseconds late; a bucket that holds this many seconds' worth of tokens makes up for it.
TIMER_SLACK = 0.05


class ConnectionPool:
    """A pool of up to `size` connections to one server per event loop, each with its own httpx client.

    A single httpx client would scan all of its connections several times per request.
    """

    def __init__(self, size: int, connect: Callable[[], httpx.AsyncBaseTransport], headers: Mapping[str, str]) -> None:
        self._size, self._connect, self._headers = size, connect, headers
        self._pools: dict[asyncio.AbstractEventLoop, tuple[_LoopPool, AsyncGenerator[_LoopPool, None]]] = {}

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[httpx.AsyncClient]:
        """Wait for a free connection of the running loop, first come, first served."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools = {each: pool for each, pool in self._pools.items() if not each.is_closed()}
            keeper = self._keep_open(loop)
            # The generator reaches its yield without suspending, so that no other task runs in between.
            self._pools[loop] = await anext(keeper), keeper
        pool, _ = self._pools[loop]
        async with pool.slots:
            if not pool.idle:
                transport = self._connect()
                client = httpx.AsyncClient(transport=transport, headers=self._headers, timeout=httpx.Timeout(None))
                pool.clients.append(client)
                pool.idle.append(client)
            client = pool.idle.pop()
            try:
                yield client
            finally:
                client.cookies.clear()  # a response must not depend on earlier responses
                pool.idle.append(client)

    async def aclose(self) -> None:
        """Close the connections of the running loop; otherwise they are closed when the loop ends."""
        _, keeper = self._pools.get(asyncio.get_running_loop(), (None, None))
        if keeper is not None:
            await keeper.aclose()

    async def _keep_open(self, loop: asyncio.AbstractEventLoop) -> "AsyncGenerator[_LoopPool, None]":
        """Yield a new pool, and close its connections when the ending loop closes this async generator."""
        pool = _LoopPool(asyncio.Semaphore(self._size))
        try:
            yield pool
        finally:
            self._pools.pop(loop, None)
            for client in pool.clients:
                await client.aclose()


@dataclass(slots=True)
class _LoopPool:
    slots: asyncio.Semaphore
    clients: list[httpx.AsyncClient] = field(default_factory=list)
    idle: list[httpx.AsyncClient] = field(default_factory=list)


class LoopSemaphore:
    """A semaphore per event loop; every new loop starts with all slots free."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def current(self) -> asyncio.Semaphore:
        """Return the semaphore of the running loop."""
        return self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._count))


class RateLimiter:
    """Token bucket of `rate` requests per second, served in order; no limit if the rate is None.

    Any interval of t seconds admits at most rate * t + max(1, rate / 20) requests.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._interval = 0.0 if rate is None else 1.0 / rate
        self._slack = max(0.0, TIMER_SLACK - self._interval)
        self._clock, self._sleep = clock, sleep
        self._full_at = float("-inf")  # when the bucket will be full again, so that no task has to refill it
        self._turn = LoopSemaphore(1)

    async def acquire(self) -> None:
        """Wait for a token; a caller cancelled while waiting takes none."""
        async with self._turn.current():
            while (wait := self._full_at - self._slack - self._clock()) > 0:
                await self._sleep(wait)
            self._full_at = max(self._full_at, self._clock()) + self._interval


def make_transport(proxy: httpx.Proxy | None) -> httpx.AsyncHTTPTransport:
    """Create a transport through the given proxy, or a direct transport; proxies in the environment are ignored."""
    limits = httpx.Limits(keepalive_expiry=IDLE_SECONDS)
    return httpx.AsyncHTTPTransport(verify=tls_context(), trust_env=False, proxy=proxy, limits=limits)


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return a TLS context with the trusted certificates (SSL_CERT_FILE if set); cached, because loading is slow."""
    return httpx.create_ssl_context()


def parse_proxy(url: str | None) -> httpx.Proxy | None:
    """Parse the URL of a proxy, if any; errors do not repeat the URL, which may contain a password."""
    if url is None:
        return None
    parsed = _parse_url(url, "the proxy URL", "http://127.0.0.1:3128", shown="")
    return httpx.Proxy(parsed, ssl_context=tls_context() if parsed.scheme == "https" else None)


def parse_service_url(url: str, default_path: str) -> httpx.URL:
    """Parse the URL of a service, adding the default path if the URL has no path."""
    shown = "" if "@" in url else f" {url!r}"
    parsed = _parse_url(url, "the server URL", "http://127.0.0.1:8000", shown)
    if parsed.userinfo:
        raise ConfigError("the server URL contains a user name or password; use a token or key instead")
    return parsed.copy_with(path=default_path) if parsed.path in ("", "/") else parsed


def _parse_url(url: str, name: str, example: str, shown: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
        host = parsed.host  # decoded lazily, which may fail too
    except (httpx.InvalidURL, UnicodeError):
        raise ConfigError(f"{name}{shown} is not valid; expected one like {example}") from None
    if (parsed.port or 0) > 65535:
        raise ConfigError(f"{name} has port {parsed.port}, above 65535; expected one like {example}")
    if parsed.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{name}{shown} has scheme {parsed.scheme!r} and host {host!r}; expected one like {example}")
    return parsed
