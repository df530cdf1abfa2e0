"""A cache in front of a retriever: what was found is kept, and what is being asked is not asked again."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.retriever import Retriever

Outcome = list[Hit] | SearchUnavailable
Key = tuple[str, int]

JOINED = 64  # queries of an inquiry that a smaller one joins, rather than ask again


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Queries answered from what is kept (`hits`), by a question under way (`joined`), and asked (`misses`)."""

    hits: int
    joined: int
    misses: int


@dataclass(eq=False, slots=True)
class Inquiry:
    """A question to the retriever, and how many callers wait for it."""

    keys: list[Key]
    task: asyncio.Task[dict[Key, Outcome]]
    waiting: int = 0


class CachedRetriever:
    """Answers from the `capacity` searches used last, and asks the retriever for the others; failures are not kept."""

    def __init__(self, retriever: Retriever, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f"the capacity of the cache is {capacity}; expected at least 1, or no cache")
        self._retriever, self._capacity = retriever, capacity
        self._kept: OrderedDict[Key, list[Hit]] = OrderedDict()
        self._asked: dict[Key, Inquiry] = {}
        self._hits, self._joined, self._misses = 0, 0, 0

    @property
    def counts(self) -> CacheCounts:
        """The counters as they stand."""
        return CacheCounts(self._hits, self._joined, self._misses)

    async def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        """See Retriever."""
        keys = [(query, k) for query in queries]
        outcomes: dict[Key, Outcome] = {key: self._kept[key] for key in keys if key in self._kept}
        for key in outcomes:
            self._kept.move_to_end(key)
        self._hits += sum(key in outcomes for key in keys)
        inquiries = self._inquiries([key for key in keys if key not in outcomes], k)
        await self._wait(inquiries)
        for inquiry in inquiries:
            outcomes |= inquiry.task.result()
        return [outcome if isinstance(outcome := outcomes[key], SearchUnavailable) else [*outcome] for key in keys]

    def _inquiries(self, keys: list[Key], k: int) -> set[Inquiry]:
        """The questions that will answer these keys: those under way, and one for the rest."""
        under_way = {key: self._asked[key] for key in keys if self._is_asked(key, max(JOINED, len(keys)))}
        missing = list(dict.fromkeys(key for key in keys if key not in under_way))
        self._misses += len(missing)
        self._joined += len(keys) - len(missing)
        return {*under_way.values()} | ({self._inquire(missing, k)} if missing else set())

    def _is_asked(self, key: Key, most: int) -> bool:
        """Whether the question is under way in this event loop, with at most so many others.

        One of a loop that ended will never be answered, and one among thousands is answered with the last of them.
        """
        inquiry = self._asked.get(key)
        here = inquiry is not None and inquiry.task.get_loop() is asyncio.get_running_loop()
        return inquiry is not None and here and len(inquiry.keys) <= most

    def _inquire(self, keys: list[Key], k: int) -> Inquiry:
        # A task of its own: the caller who came first may leave, and the others still get their answer.
        inquiry = Inquiry(keys, asyncio.create_task(self._ask(keys, k)))
        inquiry.task.add_done_callback(lambda _: self._forget(inquiry))
        self._asked.update(dict.fromkeys(keys, inquiry))
        return inquiry

    async def _ask(self, keys: list[Key], k: int) -> dict[Key, Outcome]:
        outcomes = dict(zip(keys, await self._retriever.search([query for query, _ in keys], k), strict=True))
        for key, outcome in outcomes.items():
            if not isinstance(outcome, SearchUnavailable):
                self._kept[key] = outcome
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
        return outcomes

    async def _wait(self, inquiries: set[Inquiry]) -> None:
        for inquiry in inquiries:
            inquiry.waiting += 1
        try:
            if inquiries:
                await asyncio.wait([inquiry.task for inquiry in inquiries])
        finally:
            for inquiry in inquiries:
                self._leave(inquiry)

    def _leave(self, inquiry: Inquiry) -> None:
        inquiry.waiting -= 1
        if not inquiry.waiting and not inquiry.task.done():
            self._forget(inquiry)
            inquiry.task.cancel()

    def _forget(self, inquiry: Inquiry) -> None:
        """A key may by now be asked by another inquiry, in another loop."""
        for key in inquiry.keys:
            if self._asked.get(key) is inquiry:
                del self._asked[key]
