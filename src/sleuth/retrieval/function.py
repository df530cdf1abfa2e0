"""A retriever from a Python function named in the settings as import:package.function."""

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
from sleuth.retrieval.retriever import SearchOutcome
from sleuth.retrieval.wire import parse_hits

CONTRACT = Contract(("queries", "k"), "one list of rows per query", is_async=None)


class FunctionRetriever:
    """Retriever from `search(queries, k)`, plain or async, that returns one list per query, best first.

    List entries are Hits, corpus rows, or scored rows in any format that servers return. An exception, or a call longer
    than `deadline` seconds, makes its queries unavailable. Plain functions run in at most `concurrency` threads.
    """

    def __init__(self, function: Callable[..., Any], name: str, deadline: float = 60.0, concurrency: int = 64) -> None:
        self._function, self._name, self._deadline, self._concurrency = function, name, deadline, concurrency
        # A semaphore belongs to one event loop, and a retriever may outlive several.
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        """See Retriever; blank queries are not passed to the function."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        texts = [query for query in queries if query.strip()]
        outcomes = iter(await self._search(texts, k) if texts else [])
        return [next(outcomes) if query.strip() else [] for query in queries]

    async def _search(self, queries: list[str], k: int) -> list[SearchOutcome]:
        try:
            semaphore = self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._concurrency))
            async with semaphore, asyncio.timeout(self._deadline) as limit:
                answer = await self._call(list(queries), k)
        except Exception as error:  # user code may raise anything, which concerns these queries only
            late = isinstance(error, TimeoutError) and limit.expired()
            timeout = f"{self._name!r} did not return within {self._deadline:g} s"
            cause = timeout if late else describe_exception(self._name, error)
            return [SearchUnavailable(query, cause) for query in queries]
        try:
            if not isinstance(answer, Sequence) or len(answer) != len(queries):
                raise ValueError(f"{type(answer).__name__}, expected one list for each of {len(queries)} queries")
            return [_outcome(found, k) for found in answer]
        except ValueError as error:
            return [SearchUnavailable(query, f"{self._name!r} returned an invalid value: {error}") for query in queries]

    async def _call(self, queries: list[str], k: int) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(queries, k)
        answer = await in_daemon_thread(lambda: self._function(queries, k))
        # Callable objects and wrappers do not reveal beforehand that they are async.
        return await answer if inspect.isawaitable(answer) else answer


async def in_daemon_thread(call: Callable[[], Any]) -> Any:
    """Run a function in a thread that does not keep the process alive if it never returns."""
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()  # a cancelled caller does not cancel it; a late result is dropped

    def run() -> None:
        try:
            outcome.set_result(call())
        except StopIteration as error:  # not allowed in an asyncio future
            outcome.set_exception(RuntimeError(f"it raised StopIteration({error})"))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="search function", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _outcome(found: Any, k: int) -> SearchOutcome:
    if isinstance(found, SearchUnavailable):
        return found
    if isinstance(found, Sequence) and all(isinstance(hit, Hit) for hit in found):
        return list(found)[:k]
    return parse_hits(found)[:k]
