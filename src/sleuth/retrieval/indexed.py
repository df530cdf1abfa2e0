"""A ranker and the passages behind its rows: the search of one index, in a thread of its own."""

import asyncio
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sleuth.corpus.passages import PassageStore
from sleuth.errors import InputError, SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.base import Ranked, Ranker


class Indexed:
    """A Retriever over one index; searches wait for each other, so that a GPU is never entered twice at once."""

    def __init__(self, ranker: Ranker, store: PassageStore) -> None:
        self._ranker = ranker
        self._store = store
        self._thread = ThreadPoolExecutor(1, "search")
        weakref.finalize(self, self._thread.shutdown, wait=False)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        """See Retriever."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._answers, list(queries), k)

    def _answers(self, queries: list[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        try:
            ranked = self._ranker.rank(queries, min(k, len(self._store)))
        except Exception as error:  # whatever broke, each query is told, and the next call may succeed
            cause = f"{type(error).__name__}: {error}"
            return [SearchUnavailable(query, cause) for query in queries]
        return [self._hits(query, rows) for query, rows in zip(queries, ranked, strict=True)]

    def _hits(self, query: str, ranked: Ranked) -> list[Hit] | SearchUnavailable:
        try:
            return [Hit(self._store[row], score) for row, score in ranked]
        except InputError as error:
            return SearchUnavailable(query, str(error))
