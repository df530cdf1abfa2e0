"""A search engine of the user's own: a function that Python can import."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from sleuth.errors import SearchUnavailable
from sleuth.hooks import Contract, raised
from sleuth.records import Hit
from sleuth.retrieval.wire import hits_of

Found = list[Hit] | SearchUnavailable
CONTRACT = Contract(("queries", "k"), "one list of rows a query", awaited=None)


class Function:
    """A Retriever from `search(queries, k)`, plain or async, which gives one list a query, best first.

    Entries of a list are Hits, corpus rows, or rows with a score in any shape that servers answer in. What the function
    raises makes its queries unavailable; a plain function runs in a thread.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name

    async def search(self, queries: Sequence[str], k: int) -> list[Found]:
        """See Retriever; blank queries are not put to the function."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        asked = [query for query in queries if query.strip()]
        answers = iter(await self._asked(asked, k) if asked else [])
        return [next(answers) if query.strip() else [] for query in queries]

    async def _asked(self, queries: list[str], k: int) -> list[Found]:
        try:
            answer = await self._called(list(queries), k)
        except Exception as error:  # it is not our code, and whatever it raises concerns these queries only
            return [SearchUnavailable(query, raised(self._name, error)) for query in queries]
        try:
            if not isinstance(answer, Sequence) or len(answer) != len(queries):
                raise ValueError(f"{type(answer).__name__}, expected one list for each of {len(queries)} queries")
            return [_found(found, k) for found in answer]
        except ValueError as error:
            return [SearchUnavailable(query, f"{self._name!r} returned nonsense: {error}") for query in queries]

    async def _called(self, queries: list[str], k: int) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(queries, k)
        answer = await asyncio.to_thread(self._function, queries, k)
        # An object that is called, or a wrapper, does not say beforehand that it is async.
        return await answer if inspect.isawaitable(answer) else answer


def _found(found: Any, k: int) -> Found:
    if isinstance(found, SearchUnavailable):
        return found
    if isinstance(found, Sequence) and all(isinstance(hit, Hit) for hit in found):
        return list(found)[:k]
    return hits_of(found)[:k]
