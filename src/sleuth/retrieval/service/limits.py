"""What one request may ask of the server, and the answer to one that asks for more."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from sleuth.errors import SleuthError


class Refused(SleuthError):
    """A request that is not served: the status of the answer, and a sentence that says why."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest request that is served; `hits` bounds queries times topk.

    Requests wait for their turn: `waiting` queries in all, with so many characters, and each for `waiting_seconds`.
    """

    queries: int = 10_000
    characters: int = 32_768
    topk: int = 1_000
    hits: int = 200_000
    urls: int = 1_000
    body: int = 16 * 2**20
    body_seconds: float = 60.0
    waiting: int = 500_000
    waiting_characters: int = 2**28
    waiting_seconds: float = 300.0
    batch: int = 512

    def check_texts(self, texts: Sequence[str], name: str, most: int) -> None:
        """Refuses a list of more than `most` texts, or with one that is too long."""
        if len(texts) > most:
            raise Refused(422, f"{name} holds {len(texts):,} entries, and {most:,} are served in one request")
        for place, text in enumerate(texts):
            if len(text) > self.characters:
                raise Refused(
                    422, f"{name}.{place} has {len(text):,} characters, and {self.characters:,} are served; shorten it"
                )

    def check_hits(self, queries: int, k: int, name: str) -> None:
        """Refuses more hits a query, or in all, than one answer may hold."""
        if k > self.topk:
            raise Refused(422, f"{name} is {k if k < 10**15 else 'huge'}, and at most {self.topk:,} are served")
        if queries * k > self.hits:
            raise Refused(
                422,
                f"{queries:,} queries with {k:,} hits each are more than the {self.hits:,} hits of one answer; "
                "send fewer queries at once",
            )

    async def read_body(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a request; too large a one is refused before it is held, one that does not come after a while.

        A length that is announced is not believed: what arrives is counted.
        """
        if _announced(scope) > self.body:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.body_seconds):
                return await self._read(receive)
        except TimeoutError:
            raise Refused(408, f"the body of the request did not arrive within {self.body_seconds:g} s") from None

    async def _read(self, receive: Receive) -> bytes:
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > self.body:
                raise self._too_large()
            more = message.get("more_body", False)
        return bytes(body)

    def _too_large(self) -> Refused:
        return Refused(
            413, f"the body is larger than the {self.body:,} bytes that are served; send fewer queries at once"
        )


def _announced(scope: Scope) -> int:
    """The length the client announces; 0 where it does not, or says nonsense."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
