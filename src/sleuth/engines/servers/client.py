"""HTTP client for one server, and the priority queue in front of it."""

import asyncio
import heapq
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from sleuth.engines.servers.completion import Chunk
from sleuth.engines.servers.dialect import Dialect
from sleuth.errors import EngineFailure
from sleuth.http.client import error_message
from sleuth.http.connections import make_transport

CONNECT_TIMEOUT = 5.0  # seconds


class ServerLost(Exception):
    """A request failed; a retry or another server may succeed."""


class PrioritySemaphore:
    """A semaphore whose waiters enter by priority (lowest first), then by arrival."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._arrivals = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._active = 0

    @property
    def load(self) -> int:
        """Number of holders and waiters."""
        return self._active + len(self._waiting)

    @asynccontextmanager
    async def acquire(self, priority: int) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._arrivals += 1
        heapq.heappush(self._waiting, (priority, self._arrivals, turn))
        # Deferred, so that callers arriving in the same iteration of the loop are ordered by priority too.
        loop.call_soon(self._wake)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._wake(released=1)
            raise
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._wake(released=1)

    def _wake(self, released: int = 0) -> None:
        self._free += released
        while self._free and self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self._free -= 1
                turn.set_result(None)


class ServerClient:
    """Streams completions from one server; `token_timeout` is the longest gap between tokens, in seconds.

    `weights` is the server's name for the weights it should have, None if it reports none.
    """

    def __init__(self, address: str, dialect: Dialect, *, slots: int, token_timeout: float) -> None:
        self.address, self.dialect = address.rstrip("/"), dialect
        self.slots = PrioritySemaphore(slots)
        self.weights: str | None = None
        self._timeout = httpx.Timeout(token_timeout, connect=CONNECT_TIMEOUT, pool=None)
        self._client = self._new_client()

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of a completion; closing the generator aborts the request at the server."""
        received = 0
        try:
            async with self._client.stream("POST", self.dialect.path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    self._raise_for_status(response.status_code, response.text)
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and (message := line.removeprefix("data: ")) != "[DONE]":
                        # An error can arrive mid-stream, after a status of 200.
                        if message.startswith('{"error"'):
                            self._raise_for_status(_error_code(message), message)
                        chunk = self.dialect.parse_chunk(message, received)
                        received += len(chunk.ids)
                        yield chunk
        except (httpx.TransportError, httpx.StreamError) as error:
            raise ServerLost(f"{self.address}: {type(error).__name__} {error}".rstrip()) from error

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send one request and return the parsed JSON response."""
        try:
            response = await self._client.request(method, path, json=body)
        except httpx.TransportError as error:
            raise ServerLost(f"{self.address}: {type(error).__name__} {error}".rstrip()) from error
        self._raise_for_status(response.status_code, response.text)
        try:
            return response.json()
        except ValueError as error:
            raise EngineFailure(f"{self.address}{path} returned {response.text[:80]!r}, expected JSON") from error

    async def is_healthy(self) -> bool:
        try:
            response = await asyncio.wait_for(self._client.get(self.dialect.health), self.dialect.health_timeout)
        except (httpx.TransportError, TimeoutError):
            return False
        return response.status_code == httpx.codes.OK

    async def disconnect(self) -> None:
        """Close all connections; a later request opens new ones."""
        client, self._client = self._client, self._new_client()
        await client.aclose()

    def _new_client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.address, timeout=self._timeout, transport=make_transport(None))

    def _raise_for_status(self, status: int, text: str) -> None:
        """Raise ServerLost for a server error, which may be retried, or EngineFailure for a client error."""
        if status == httpx.codes.OK:
            return
        problem = f"{self.address} returned {status}: {error_message(text)}"
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise ServerLost(problem)
        raise EngineFailure(problem)


def _error_code(message: str) -> int:
    """The HTTP status in a streamed error; a server error if there is none."""
    try:
        code = json.loads(message)["error"]["code"]
    except (ValueError, TypeError, LookupError):
        code = None
    return code if isinstance(code, int) and code >= httpx.codes.BAD_REQUEST else httpx.codes.INTERNAL_SERVER_ERROR
