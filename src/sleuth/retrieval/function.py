"""A search engine of the user's own: a function that Python can import."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

from sleuth.config.hooks import Contract, describe_exception
from sleuth.errors import SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.wire import parse_hits

DEADLINE, CONCURRENCY = 60.0, 64  # seconds of one call, and calls at once

Found = list[Hit] | SearchUnavailable
CONTRACT = Contract(("queries", "k"), "one list of rows a query", is_async=None)


class FunctionRetriever:
    """A Retriever from `search(queries, k)`, plain or async, which gives one list a query, best first.

    Entries of a list are Hits, corpus rows, or rows with a score in any shape that servers answer in. What the function
    raises makes its queries unavailable, and so does a call that takes longer than `deadline` seconds. A plain function
    runs in a thread, in `concurrency` of them at most.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, deadline: float = DEADLINE, concurrency: int = CONCURRENCY
    ) -> None:
        self._function = function
        self._name = name
        self._deadline = deadline
        self._concurrency = concurrency
        # A semaphore belongs to one event loop, and a retriever may outlive several.
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def search(self, queries: Sequence[str], k: int) -> list[Found]:
        """See Retriever; blank queries are not put to the function."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        asked = [query for query in queries if query.strip()]
        answers = iter(await self._asked(asked, k) if asked else [])
        return [next(answers) if query.strip() else [] for query in queries]

    async def _asked(self, queries: list[str], k: int) -> list[Found]:
        try:
            places = self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._concurrency))
            async with places, asyncio.timeout(self._deadline) as limit:
                answer = await self._called(list(queries), k)
        except Exception as error:  # it is not our code, and whatever it raises concerns these queries only
            late = isinstance(error, TimeoutError) and limit.expired()
            told = (
                f"{self._name!r} gave no answer within {self._deadline:g} s"
                if late
                else describe_exception(self._name, error)
            )
            return [SearchUnavailable(query, told) for query in queries]
        try:
            if not isinstance(answer, Sequence) or len(answer) != len(queries):
                raise ValueError(f"{type(answer).__name__}, expected one list for each of {len(queries)} queries")
            return [_found(found, k) for found in answer]
        except ValueError as error:
            return [SearchUnavailable(query, f"{self._name!r} returned nonsense: {error}") for query in queries]

    async def _called(self, queries: list[str], k: int) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(queries, k)
        answer = await in_daemon_thread(lambda: self._function(queries, k))
        # An object that is called, or a wrapper, does not say beforehand that it is async.
        return await answer if inspect.isawaitable(answer) else answer


async def in_daemon_thread(call: Callable[[], Any]) -> Any:
    """Runs a plain function in a thread that does not keep the process alive if it never returns."""
    outcome: Future[Any] = Future()
    # Running: whoever stops waiting does not cancel it, and its late result is dropped.
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(call())
        except StopIteration as error:  # which no asyncio future can carry
            outcome.set_exception(RuntimeError(f"it raised StopIteration({error})"))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="search function", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _found(found: Any, k: int) -> Found:
    if isinstance(found, SearchUnavailable):
        return found
    if isinstance(found, Sequence) and all(isinstance(hit, Hit) for hit in found):
        return list(found)[:k]
    return parse_hits(found)[:k]
