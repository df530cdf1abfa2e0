"""Search interfaces: Retriever, Pages and Ranker."""

from collections.abc import Sequence
from typing import Protocol

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, Passage

SearchOutcome = list[Hit] | SearchUnavailable
Ranking = list[tuple[int, float]]  # corpus rows with their scores, best first


class Retriever(Protocol):
    """Finds passages. A query returns the same hits alone or in a batch, in process or over HTTP."""

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        """Return one outcome per query, in order: at most `k` hits (`k` >= 1), best first, ties by passage id.

        A query without matches, including a blank one, returns an empty list. A failed query returns SearchUnavailable.
        """
        ...


class NullRetriever:
    """Retriever for methods that do not search: every query returns SearchUnavailable."""

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:  # noqa: ARG002
        return [SearchUnavailable(query, "the method has no search engine") for query in queries]


class Pages(Protocol):
    """Opens pages by URL."""

    async def access(self, urls: Sequence[str]) -> list[Passage | SearchUnavailable | None]:
        """Return one entry per URL, in order: the page with the URL as id, or None if the page does not exist.

        A URL that could not be looked up returns SearchUnavailable.
        """
        ...


class Ranker(Protocol):
    """Ranks the rows of one index. Not thread-safe."""

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """Return the best `k` rows for each query, ties by passage id; a blank query returns no rows."""
        ...
