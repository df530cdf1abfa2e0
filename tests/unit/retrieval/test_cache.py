"""The cache in front of a retriever that counts its queries."""

import asyncio
from collections.abc import Sequence

import pytest

from sleuth.errors import ConfigError, InputError, SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.cache import CacheCounts, CachedRetriever

Outcome = list[Hit] | SearchUnavailable


class Source:
    """Answers every query with its own text, when `opened`; those that begin with "down" it cannot answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], int]] = []
        self.opened = asyncio.Event()
        self.cancelled = 0

    async def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        self.asked.append((list(queries), k))
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if "broken" in queries:
            raise InputError("the index is broken")
        return [hits(query, k) for query in queries]


def hits(query: str, k: int) -> Outcome:
    if query.startswith("down"):
        return SearchUnavailable(query, "down")
    return [Hit(Passage(f"{query}/{n}", query), 1.0 / n) for n in range(1, k + 1)]


def opened() -> Source:
    source = Source()
    source.opened.set()
    return source


async def settled() -> None:
    """Lets every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_cached_result_is_not_searched_again() -> None:
    async def scene() -> None:
        source = opened()
        cached = CachedRetriever(source, 10)
        for _ in range(3):
            assert await cached.search(["a", "b", "a"], 2) == [hits("a", 2), hits("b", 2), hits("a", 2)]
        assert await cached.search(["c", "a"], 2) == [hits("c", 2), hits("a", 2)]
        assert source.asked == [(["a", "b"], 2), (["c"], 2)]
        assert cached.counts == CacheCounts(hits=7, joined=1, misses=3)

    asyncio.run(scene())


def test_another_k_is_another_search() -> None:
    async def scene() -> None:
        source = opened()
        cached = CachedRetriever(source, 10)
        assert await cached.search(["a"], 1) == [hits("a", 1)]
        assert await cached.search(["a"], 2) == [hits("a", 2)]
        assert source.asked == [(["a"], 1), (["a"], 2)]

    asyncio.run(scene())


def test_empty_results_are_cached_and_failures_are_not() -> None:
    class Empty(Source):
        async def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
            self.asked.append((list(queries), k))
            return [SearchUnavailable(query, "down") if query == "down" else [] for query in queries]

    async def scene() -> None:
        source = Empty()
        cached = CachedRetriever(source, 10)
        for _ in range(2):
            found, failed = await cached.search(["void", "down"], 1)
            assert found == []
            assert isinstance(failed, SearchUnavailable)
        assert source.asked == [(["void", "down"], 1), (["down"], 1)]

    asyncio.run(scene())


def test_least_recently_used_search_is_evicted() -> None:
    async def scene() -> None:
        source = opened()
        cached = CachedRetriever(source, 2)
        for query in ("a", "b", "a", "c", "a", "b"):
            assert await cached.search([query], 1) == [hits(query, 1)]
        assert [queries for queries, _ in source.asked] == [["a"], ["b"], ["c"], ["b"]]
        assert await cached.search(["x", "y", "z"], 1) == [hits("x", 1), hits("y", 1), hits("z", 1)]

    asyncio.run(scene())


def test_returned_hits_are_copies() -> None:
    async def scene() -> None:
        cached = CachedRetriever(opened(), 2)
        for _ in range(3):
            (found,) = await cached.search(["a"], 2)
            assert found == hits("a", 2)
            assert not isinstance(found, SearchUnavailable)
            found.clear()

    asyncio.run(scene())


def test_request_in_flight_is_shared_and_so_is_its_failure() -> None:
    async def scene() -> None:
        source = Source()
        cached = CachedRetriever(source, 10)
        calls = [asyncio.create_task(cached.search([*queries], 1)) for queries in ("ab", "bc", "cab")]
        failing = [asyncio.create_task(cached.search(["down"], 1)) for _ in range(3)]
        await settled()
        source.opened.set()
        assert await asyncio.gather(*calls) == [
            [hits(query, 1) for query in queries] for queries in ("ab", "bc", "cab")
        ]
        for ((outcome,),) in zip(await asyncio.gather(*failing), strict=True):
            assert isinstance(outcome, SearchUnavailable)
        assert source.asked == [(["a", "b"], 1), (["c"], 1), (["down"], 1)]
        assert cached.counts == CacheCounts(hits=0, joined=6, misses=4)

    asyncio.run(scene())


def test_exception_reaches_all_callers_and_is_not_cached() -> None:
    async def scene() -> None:
        source = opened()
        cached = CachedRetriever(source, 10)
        results = await asyncio.gather(*(cached.search(["broken"], 1) for _ in range(3)), return_exceptions=True)
        assert [str(result) for result in results] == ["the index is broken"] * 3
        with pytest.raises(InputError):
            await cached.search(["broken"], 1)
        assert len(source.asked) == 2

    asyncio.run(scene())


def test_cancelling_the_first_caller_does_not_cancel_the_others() -> None:
    async def scene() -> None:
        source = Source()
        cached = CachedRetriever(source, 10)
        first, second = (asyncio.create_task(cached.search(["a"], 1)) for _ in range(2))
        await settled()
        first.cancel()
        await settled()
        assert first.cancelled()
        source.opened.set()
        assert await second == [hits("a", 1)]
        assert (len(source.asked), source.cancelled) == (1, 0)

    asyncio.run(scene())


def test_request_without_callers_is_cancelled() -> None:
    async def scene() -> None:
        source = Source()
        cached = CachedRetriever(source, 10)
        calls = [asyncio.create_task(cached.search(["a"], 1)) for _ in range(2)]
        await settled()
        for call in calls:
            call.cancel()
        late = asyncio.create_task(cached.search(["a"], 1))  # comes while the question is being dropped
        await settled()
        later = asyncio.create_task(cached.search(["a"], 1))
        await settled()
        assert (source.cancelled, len(source.asked)) == (1, 2)
        source.opened.set()
        assert await late == await later == [hits("a", 1)]
        assert len(source.asked) == 2

    asyncio.run(scene())


def test_requests_of_a_closed_event_loop_are_ignored() -> None:
    source = Source()
    cached = CachedRetriever(source, 10)

    async def abandoned() -> None:
        call = asyncio.create_task(cached.search(["a"], 1))
        await settled()
        assert not call.done()

    async def scene() -> None:
        source.opened = asyncio.Event()
        source.opened.set()
        assert await cached.search(["a"], 1) == [hits("a", 1)]

    asyncio.run(abandoned())
    asyncio.run(scene())
    asyncio.run(scene())
    assert len(source.asked) == 2


def test_requests_of_a_stopped_event_loop_are_ignored() -> None:
    source = Source()
    cached = CachedRetriever(source, 10)
    loop = asyncio.new_event_loop()
    call = loop.create_task(cached.search(["a"], 1))
    loop.run_until_complete(settled())

    async def scene() -> None:
        source.opened = asyncio.Event()
        source.opened.set()
        assert await cached.search(["a"], 1) == [hits("a", 1)]

    asyncio.run(scene())
    call.cancel()
    loop.run_until_complete(settled())
    loop.close()
    asyncio.run(scene())
    assert len(source.asked) == 2


def test_zero_capacity_is_rejected() -> None:
    with pytest.raises(ConfigError, match="capacity is 0"):
        CachedRetriever(opened(), 0)


def test_small_request_does_not_join_a_large_one() -> None:
    async def scene() -> None:
        source = Source()
        cached = CachedRetriever(source, 10_000)
        long = asyncio.create_task(cached.search([str(number) for number in range(1000)], 1))
        await settled()
        short = asyncio.create_task(cached.search(["7"], 1))
        await settled()
        assert [len(queries) for queries, _ in source.asked] == [1000, 1]
        source.opened.set()
        assert await short == [hits("7", 1)]
        assert len(await long) == 1000

    asyncio.run(scene())
