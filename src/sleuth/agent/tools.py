"""The tools the agent has: a search engine, and pages."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sleuth.errors import SearchUnavailable
from sleuth.records import Access, Hit, Search
from sleuth.retrieval.retriever import Pages, Retriever

Found = tuple[tuple[Hit, ...], ...]  # the hits of each query, or the page of each url: one, or none


@dataclass(slots=True)
class Waits:
    """Searches made, the seconds each was waited for in sum, and the seconds in which any was under way."""

    searches: int = 0
    seconds: float = 0.0
    busy: float = 0.0
    _under_way: int = 0
    _since: float = 0.0

    @property
    def any_under_way(self) -> bool:
        return self._under_way > 0

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
    """Asks a retriever for the best `k` passages of a query, and pages, where there are any, for those of a url."""

    retriever: Retriever
    k: int
    waits: Waits = field(default_factory=Waits)
    pages: Pages | None = None

    async def search(self, query: str) -> tuple[Hit, ...] | SearchUnavailable:
        """The hits of one query, or why there are none to be had."""
        found = await self.answer(Search(query))
        return found if isinstance(found, SearchUnavailable) else found[0]

    async def answer(self, call: Search | Access) -> Found | SearchUnavailable:
        """What each query or url of a call finds; one that got no answer leaves the others without theirs."""
        with self.waits.one():
            found = await self._found(call)
        failed = next((each for each in found if isinstance(each, SearchUnavailable)), None)
        return failed or tuple(tuple(each) for each in found if not isinstance(each, SearchUnavailable))

    async def _found(self, call: Search | Access) -> Sequence[Sequence[Hit] | SearchUnavailable]:
        if isinstance(call, Search):
            return await self.retriever.search(list(call.queries), self.k)
        if self.pages is None:
            return [SearchUnavailable(url, "there are no pages to open") for url in call.urls]
        pages = await self.pages.access(list(call.urls))
        return [each if isinstance(each, SearchUnavailable) else [Hit(each, 1.0)] if each else [] for each in pages]
