"""The contracts of search: a Retriever answers queries with passages; a Ranker orders the rows of one index."""

from collections.abc import Sequence
from typing import Protocol

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, Passage

Ranked = list[tuple[int, float]]  # row numbers of the corpus with their scores, best first


class Retriever(Protocol):
    """Finds passages; the same query gives the same hits, asked alone or with others, here or over the wire."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        """At most `k` hits a query, best first, equal scores in the order of the passage ids as strings.

        One entry a query, in their order. A query for which nothing is found, a blank one too, has an empty list:
        that is an answer. A query that could not be answered has a SearchUnavailable in its place. `k` is at least 1.
        """
        ...


class Pages(Protocol):
    """Opens pages by url."""

    async def access(self, urls: Sequence[str]) -> list[Passage | SearchUnavailable | None]:
        """One entry a url, in their order: the page, with the url as id; None where there is no such page.

        A url that could not be looked up has a SearchUnavailable in its place.
        """
        ...


class Ranker(Protocol):
    """Orders the rows of an index; called by one thread at a time."""

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """The `k` best rows of each query, equal scores in the order of the passage ids; a blank query has none."""
        ...
