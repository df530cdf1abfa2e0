"""The tool the agent has: a search engine."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.base import Retriever


@dataclass(slots=True)
class Waits:
    """Searches made, the seconds each was waited for in sum, and the seconds in which any was under way."""

    searches: int = 0
    seconds: float = 0.0
    busy: float = 0.0
    _under_way: int = 0
    _since: float = 0.0

    @contextmanager
    def one(self) -> Iterator[None]:
        began = time.monotonic()
        if not self._under_way:
            self._since = began
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self.searches += 1
            self.seconds += time.monotonic() - began
            if not self._under_way:
                self.busy += time.monotonic() - self._since


@dataclass(frozen=True, slots=True)
class SearchTool:
    """Asks a retriever for the best `k` passages."""

    retriever: Retriever
    k: int
    waits: Waits = field(default_factory=Waits)

    async def search(self, query: str) -> tuple[Hit, ...] | SearchUnavailable:
        """The hits of one query, or why there are none to be had."""
        with self.waits.one():
            (found,) = await self.retriever.search([query], self.k)
        return found if isinstance(found, SearchUnavailable) else tuple(found)
