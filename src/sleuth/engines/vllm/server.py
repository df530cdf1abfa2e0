"""One vLLM server, as we speak to it."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from functools import lru_cache
from typing import Any

import httpx

from sleuth.engines.vllm.gate import Gate
from sleuth.engines.vllm.message import Piece, piece
from sleuth.errors import EngineFailure

# Seconds in which a server that lives accepts a connection and says so.
CONNECT = 5.0
COMPLETIONS = "/v1/completions"


class Lost(Exception):
    """A request broke off for a reason that another try, or another server, may not have."""


class Server:
    """Streams completions; `silence` is how many seconds may pass without a token."""

    def __init__(self, address: str, *, places: int, silence: float) -> None:
        self.address = address.rstrip("/")
        self.gate = Gate(places)
        self._timeout = httpx.Timeout(silence, connect=CONNECT, pool=None)
        self._client = self._connected()

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """The pieces of a completion; leaving the loop ends the request at the server too."""
        try:
            async with self._client.stream("POST", COMPLETIONS, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    self._refuse(response)
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and (message := line.removeprefix("data: ")) != "[DONE]":
                        _raise_trouble(message)
                        yield piece(message)
        except (httpx.TransportError, httpx.StreamError) as error:
            raise Lost(f"{self.address}: {_named(error)}") from error

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of one answer."""
        try:
            response = await self._client.request(method, path, json=body)
        except httpx.TransportError as error:
            raise Lost(f"{self.address}: {_named(error)}") from error
        if response.status_code != httpx.codes.OK:
            self._refuse(response)
        try:
            return response.json()
        except ValueError as error:
            raise EngineFailure(f"{self.address}{path} answered {response.text[:80]!r}, expected JSON") from error

    async def lives(self) -> bool:
        """Whether it says it is well."""
        try:
            response = await asyncio.wait_for(self._client.get("/health"), CONNECT)
        except (httpx.TransportError, TimeoutError):
            return False
        return response.status_code == httpx.codes.OK

    async def hang_up(self) -> None:
        """Ends its connections; a later request makes a new one."""
        client, self._client = self._client, self._connected()
        await client.aclose()

    def _connected(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, keepalive_expiry=4.0)
        return httpx.AsyncClient(
            base_url=self.address, timeout=self._timeout, limits=limits, trust_env=False, verify=_trusted()
        )

    def _refuse(self, response: httpx.Response) -> None:
        """A request that is wrong fails alone; one that the server could not answer may have better luck elsewhere."""
        said = f"{self.address} answered {response.status_code}: {_message(response.text)}"
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise Lost(said)
        raise EngineFailure(said)


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """The certificates trusted, read once."""
    return httpx.create_ssl_context()


def _raise_trouble(message: str) -> None:
    """An error may come in the middle of a stream, whose status said that all is well."""
    if message.startswith('{"error"'):
        raise Lost(_message(message))


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])[:200]
    except (ValueError, TypeError, LookupError):
        return text[:200]


def _named(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
