"""LRU cache for a retriever; concurrent identical queries share one request."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.retriever import Retriever, SearchOutcome

Key = tuple[str, int]

JOINABLE = 64  # largest request, in queries, that smaller requests may join instead of sending their own


@dataclass(slots=True)
class CacheCounts:
    """Number of queries answered from the cache (`hits`), by an in-flight request (`joined`), or sent (`misses`)."""

    hits: int = 0
    joined: int = 0
    misses: int = 0


@dataclass(eq=False, slots=True)
class Request:
    """A request to the retriever, and the number of callers waiting for it."""

    keys: list[Key]
    task: asyncio.Task[dict[Key, SearchOutcome]]
    waiting: int = 0


class CachedRetriever:
    """Retriever that caches its `capacity` most recently used searches; failures are not cached."""

    def __init__(self, retriever: Retriever, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f"the cache capacity is {capacity}; expected at least 1, or no cache")
        self._retriever, self._capacity = retriever, capacity
        self._cached: OrderedDict[Key, list[Hit]] = OrderedDict()
        self._in_flight: dict[Key, Request] = {}
        self.counts = CacheCounts()

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        keys = [(query, k) for query in queries]
        outcomes: dict[Key, SearchOutcome] = {key: self._cached[key] for key in keys if key in self._cached}
        for key in outcomes:
            self._cached.move_to_end(key)
        self.counts.hits += sum(key in outcomes for key in keys)
        requests = self._requests([key for key in keys if key not in outcomes], k)
        await self._wait(requests)
        for request in requests:
            outcomes |= request.task.result()
        return [outcome if isinstance(outcome := outcomes[key], SearchUnavailable) else [*outcome] for key in keys]

    def _requests(self, keys: list[Key], k: int) -> set[Request]:
        """Return the requests that answer these keys: in-flight requests, and one new request for the rest."""
        # Not joined: requests of another event loop, which may never finish, and requests of thousands of queries.
        loop, limit = asyncio.get_running_loop(), max(JOINABLE, len(keys))
        joined = {
            key: request
            for key in keys
            if (request := self._in_flight.get(key)) and request.task.get_loop() is loop and len(request.keys) <= limit
        }
        missing = list(dict.fromkeys(key for key in keys if key not in joined))
        self.counts.misses += len(missing)
        self.counts.joined += len(keys) - len(missing)
        requests = {*joined.values()}
        if missing:
            # In a separate task: the first caller may be cancelled while others still wait.
            request = Request(missing, asyncio.create_task(self._send(missing, k)))
            request.task.add_done_callback(lambda _: self._forget(request))
            self._in_flight.update(dict.fromkeys(missing, request))
            requests.add(request)
        return requests

    async def _send(self, keys: list[Key], k: int) -> dict[Key, SearchOutcome]:
        outcomes = dict(zip(keys, await self._retriever.search([query for query, _ in keys], k), strict=True))
        for key, outcome in outcomes.items():
            if not isinstance(outcome, SearchUnavailable):
                self._cached[key] = outcome
        while len(self._cached) > self._capacity:
            self._cached.popitem(last=False)
        return outcomes

    async def _wait(self, requests: set[Request]) -> None:
        """Wait for requests; if cancelled, also cancel the requests that no other caller waits for."""
        for request in requests:
            request.waiting += 1
        try:
            if requests:
                await asyncio.wait([request.task for request in requests])
        finally:
            for request in requests:
                request.waiting -= 1
                if not request.waiting and not request.task.done():
                    self._forget(request)
                    request.task.cancel()

    def _forget(self, request: Request) -> None:
        for key in request.keys:
            if self._in_flight.get(key) is request:  # only if it is this request, not a later one of another event loop
                del self._in_flight[key]
