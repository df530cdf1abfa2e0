"""Dynamic batching: queries of concurrent requests are searched together, and new ones collect for the next batch."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, cast

from sleuth.errors import SearchUnavailable, SleuthError
from sleuth.retrieval.retriever import Retriever, SearchOutcome

Observer = Callable[[int, float], None]  # called with the queries and the seconds of every batch

SMOOTHING = 0.2  # weight of the last batch in the running mean of seconds per query
SHARE_SECONDS = 0.05  # seconds of search time that one request may use in a batch
MIN_SHARE = 8  # queries of one request allowed in a batch however slow they are
FIRST_SHARE = 32  # queries of one request allowed in a batch until the search time is known


class Overloaded(SleuthError):
    """Raised if the queue is full or a request waited too long; retry in about `seconds`."""

    def __init__(self, queued: int, seconds: float, waited: float = 0.0) -> None:
        queue = f"{queued:,} queries are queued" + (f", and this request waited {waited:g} s" if waited else "")
        super().__init__(f"{queue}; retry in about {seconds:.1f} s, or send fewer queries")
        self.queued = queued
        self.seconds = seconds


class BatchingRetriever:
    """Retriever that searches the queries of concurrent requests in batches, at most `concurrent` at a time.

    A request starts at once if fewer searches are running. A batch has up to `batch` queries, from the oldest request
    and others with the same k. Each contributes at most about 50 ms of search time per batch and then goes to the end
    of the queue, so that long requests do not block short ones. A request fails with Overloaded if its first queries
    are not searched within `patience` seconds, or if the queue would exceed `waiting` queries or `characters`; an empty
    queue accepts a request of any length.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        batch: int = 512,
        concurrent: int = 1,
        waiting: int = 500_000,
        characters: int = 2**28,
        patience: float | None = None,
        observer: Observer | None = None,
    ) -> None:
        if batch < 1 or waiting < 1:
            raise ValueError(f"batch is {batch} and waiting is {waiting}; expected at least 1")
        self._retriever, self._observer = retriever, observer
        self._batch, self._concurrent, self._waiting, self._characters = batch, concurrent, waiting, characters
        self._patience = patience
        self._queue = _Queue()
        self._seconds_per_query = 0.0

    @property
    def queued(self) -> int:
        """Number of queries that are not in a batch yet."""
        return self._queue.queries

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        if not queries:
            return []
        worker = next(iter(self._queue.workers), None)
        if worker is not None and worker.get_loop() is not asyncio.get_running_loop():
            if worker.get_loop().is_running():
                raise RuntimeError("a BatchingRetriever is used in two event loops at once; create one for each")
            self._queue = _Queue()  # the queue of a finished event loop is discarded
        queue = self._queue
        request = _Request(tuple(queries), k)
        if queue.queries:
            queued = queue.queries + len(request.queries) - self._waiting
            characters = queue.characters + request.characters - self._characters
            if queued > 0 or characters > 0:
                excess = characters * queue.queries / max(1, queue.characters)  # in average queries
                raise Overloaded(queue.queries, max(queued, excess) * self._seconds_per_query / self._concurrent)
        queue.add(request)
        if len(queue.workers) < self._concurrent:
            queue.workers.add(asyncio.create_task(self._work(queue)))
        timer = None
        if self._patience is not None:
            timer = asyncio.get_running_loop().call_later(self._patience, self._expire, queue, request)
        try:
            return await request.answer
        finally:
            if timer is not None:
                timer.cancel()
            # If the caller was cancelled, the queries that have not started are dropped.
            queue.remove(request)

    def _expire(self, queue: "_Queue", request: "_Request") -> None:
        if not request.taken and not request.answer.done():
            ahead = sum(min(self._share, each.remaining) for each in queue.requests)
            seconds = ahead * self._seconds_per_query / self._concurrent
            error = Overloaded(queue.queries, seconds, self._patience or 0.0)
            request.answer.set_exception(error)

    @property
    def _share(self) -> int:
        """Maximum number of queries of one request in a batch."""
        if not self._seconds_per_query:
            return min(self._batch, FIRST_SHARE)
        return min(self._batch, max(MIN_SHARE, int(SHARE_SECONDS / self._seconds_per_query)))

    async def _work(self, queue: "_Queue") -> None:
        parts: list[_Part] = []
        try:
            while parts := queue.take(self._batch, self._share):
                await self._search_batch(parts)
        finally:
            queue.workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            # Both are empty unless the loop is shutting down; then no caller may wait forever.
            for request in (*queue.requests, *(part.request for part in parts)):
                queue.remove(request)
                request.answer.cancel()

    async def _search_batch(self, parts: "list[_Part]") -> None:
        started = perf_counter()
        unique = list(dict.fromkeys(query for part in parts for query in part.queries))
        answers = dict(zip(unique, await self._search_all(unique, parts[0].request.k), strict=True))
        count, seconds = sum(len(part.queries) for part in parts), perf_counter() - started
        for part in parts:
            part.request.receive(part.start, [answers[query] for query in part.queries])
        weight = SMOOTHING if self._seconds_per_query else 1
        self._seconds_per_query += (seconds / count - self._seconds_per_query) * weight
        if self._observer:
            self._observer(count, seconds)

    async def _search_all(self, queries: list[str], k: int) -> list[SearchOutcome]:
        """Search with the retriever; any exception makes all queries of the batch unavailable."""
        try:
            answers = await self._retriever.search(queries, k)
            if len(answers) == len(queries):
                return answers
            cause = f"the retriever returned {len(answers)} results for {len(queries)} queries"
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # this task was cancelled, not the retriever's own
            cause = "the search was cancelled"
        return [SearchUnavailable(query, cause) for query in queries]


@dataclass(slots=True, eq=False)
class _Request:
    """The queries of one caller, how many of them are already in batches, and the results so far by position."""

    queries: tuple[str, ...]
    k: int
    answer: "asyncio.Future[list[SearchOutcome]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    taken: int = 0
    results: dict[int, SearchOutcome] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        return len(self.queries) - self.taken

    @property
    def characters(self) -> int:
        return sum(map(len, self.queries))

    def receive(self, start: int, results: list[SearchOutcome]) -> None:
        self.results.update(enumerate(results, start))
        if len(self.results) == len(self.queries) and not self.answer.done():
            self.answer.set_result([self.results[place] for place in range(len(self.queries))])


class _Part(NamedTuple):
    """The part of a request that is in one batch: its queries from position `start`."""

    request: _Request
    start: int
    queries: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Queue:
    """The unfinished requests of one event loop, in the order they are served."""

    requests: OrderedDict[_Request, None] = field(default_factory=OrderedDict)
    queries: int = 0
    characters: int = 0  # counts whole requests: all their queries stay in memory until the request is answered
    workers: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, request: _Request) -> None:
        self.requests[request] = None
        self.queries += len(request.queries)
        self.characters += request.characters

    def remove(self, request: _Request) -> None:
        if request in self.requests:
            del self.requests[request]
            self.queries -= request.remaining
            self.characters -= request.characters

    def take(self, size: int, share: int) -> list[_Part]:
        """Take the next batch: up to `share` queries of each request with the same k as the first request."""
        parts: list[_Part] = []
        for request in list(self.requests):
            if parts and request.k != parts[0].request.k:
                continue
            queries = request.queries[request.taken : request.taken + min(size, share)]
            parts.append(_Part(request, request.taken, queries))
            request.taken += len(queries)
            size -= len(queries)
            self.queries -= len(queries)
            if request.remaining:
                self.requests.move_to_end(request)
            else:
                del self.requests[request]
                self.characters -= request.characters
            if not size:
                break
        return parts
