"""Batching: same results as single searches, no overlapping searches, fair turns, isolated failures."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.retriever import SearchOutcome
from sleuth.retrieval.service.batching import BatchingRetriever, Overloaded


class Counting:
    """Finds k passages named after the query, once `open` is set; a query with a "!" in it breaks the search."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []
        self.inside = 0
        self.most_inside = 0
        self.open = asyncio.Event()
        self.open.set()

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        self.calls.append((list(queries), k))
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        await asyncio.sleep(0)
        await self.open.wait()
        self.inside -= 1
        if any("!" in query for query in queries):
            raise OSError("the disk is gone")
        return [found(query, k) for query in queries]


def found(query: str, k: int) -> list[Hit]:
    return [Hit(Passage(f"{query} {place}", query), 1 / place) for place in range(1, k + 1)]


async def settle() -> None:
    """Lets everything that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_single_request_starts_immediately() -> None:
    inner = Counting()
    assert asyncio.run(BatchingRetriever(inner).search(["a", "b"], 2)) == [found("a", 2), found("b", 2)]
    assert inner.calls == [(["a", "b"], 2)]


def test_as_many_batches_as_replicas_are_searched_at_a_time() -> None:
    async def search() -> None:
        inner = Counting()
        inner.open.clear()
        batching = BatchingRetriever(inner, concurrent=2)
        searches = []
        for query in "abcd":
            searches.append(asyncio.create_task(batching.search([query], 1)))
            await settle()
        assert [queries for queries, _ in inner.calls] == [["a"], ["b"]]
        inner.open.set()
        assert await asyncio.gather(*searches) == [[found(query, 1)] for query in "abcd"]
        assert [queries for queries, _ in inner.calls] == [["a"], ["b"], ["c", "d"]]
        assert inner.most_inside == 2

    asyncio.run(search())


def test_no_queries_search_nothing() -> None:
    inner = Counting()
    assert asyncio.run(BatchingRetriever(inner).search([], 2)) == []
    assert inner.calls == []


@pytest.mark.parametrize("k", [0, -1])
def test_k_is_at_least_one(k: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        asyncio.run(BatchingRetriever(Counting()).search(["a"], k))


requests_of_many = st.lists(
    st.tuples(st.lists(st.sampled_from("abcdefgh"), max_size=7), st.integers(1, 3)), min_size=1, max_size=12
)


@given(requests=requests_of_many, batch=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_batched_results_equal_single_results_and_searches_never_overlap(
    requests: list[tuple[list[str], int]], batch: int
) -> None:
    async def run() -> Counting:
        inner = Counting()
        gathered = BatchingRetriever(inner, batch=batch)
        answers = await asyncio.gather(*(gathered.search(queries, k) for queries, k in requests))
        assert answers == [[found(query, k) for query in queries] for queries, k in requests]
        assert gathered.queued == 0
        return inner

    inner = asyncio.run(run())
    assert inner.most_inside <= 1
    assert all(len(queries) <= batch and len(set(queries)) == len(queries) for queries, _ in inner.calls)


def test_requests_during_a_search_form_one_batch() -> None:
    async def run() -> Counting:
        inner = Counting()
        inner.open.clear()
        gathered = BatchingRetriever(inner)
        first = asyncio.create_task(gathered.search(["first"], 1))
        await settle()
        later = [asyncio.create_task(gathered.search([query, "same"], 1)) for query in "abc"]
        await settle()
        assert gathered.queued == 6
        inner.open.set()
        await asyncio.gather(first, *later)
        return inner

    assert asyncio.run(run()).calls == [(["first"], 1), (["a", "same", "b", "c"], 1)]


def test_batches_have_one_k_and_the_oldest_request_first() -> None:
    async def run() -> Counting:
        inner = Counting()
        gathered = BatchingRetriever(inner)
        await asyncio.gather(*(gathered.search([query], k) for query, k in (("a", 1), ("b", 2), ("c", 1), ("d", 2))))
        return inner

    assert asyncio.run(run()).calls == [(["a", "c"], 1), (["b", "d"], 2)]


def test_long_request_is_served_in_order_over_several_batches() -> None:
    async def run() -> Counting:
        inner = Counting()
        gathered = BatchingRetriever(inner, batch=4, waiting=5)
        long = [str(number) for number in range(10)]
        answers = await asyncio.gather(gathered.search(long, 1), settle())
        assert answers[0] == [found(query, 1) for query in long]
        return inner

    assert [len(queries) for queries, _ in asyncio.run(run()).calls] == [4, 4, 2]


def test_cancelled_request_is_not_searched() -> None:
    async def run() -> Counting:
        inner = Counting()
        inner.open.clear()
        gathered = BatchingRetriever(inner, batch=2)
        running = asyncio.create_task(gathered.search(["a", "b", "c"], 1))
        await settle()
        dropped = asyncio.create_task(gathered.search(["d"], 1))
        kept = asyncio.create_task(gathered.search(["e"], 1))
        await settle()
        assert gathered.queued == 3
        dropped.cancel()
        running.cancel()
        await settle()
        assert gathered.queued == 1
        inner.open.set()
        assert await kept == [found("e", 1)]
        assert dropped.cancelled()
        assert running.cancelled()
        return inner

    assert asyncio.run(run()).calls == [(["a", "b"], 1), (["e"], 1)]


def test_full_queue_raises_overloaded_with_an_estimate() -> None:
    async def run() -> None:
        inner = Counting()
        gathered = BatchingRetriever(inner, batch=2, waiting=3)
        await gathered.search(["warm"], 1)
        inner.open.clear()
        running = asyncio.create_task(gathered.search(["a", "b"], 1))
        await settle()
        waiting = asyncio.create_task(gathered.search(["c", "d"], 1))
        await settle()
        with pytest.raises(Overloaded) as refusal:
            await gathered.search(["e", "f"], 1)
        assert refusal.value.queued == 2
        assert refusal.value.seconds > 0
        one_more = asyncio.create_task(gathered.search(["g"], 1))
        await settle()
        inner.open.set()
        assert await one_more == [found("g", 1)]
        await asyncio.gather(running, waiting)

    asyncio.run(run())


class Timed(Counting):
    """Takes 4 ms a query, by its own clock of calls."""

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        answers = await super().search(queries, k)
        await asyncio.sleep(0.004 * len(queries))
        return answers


def test_long_request_takes_turns_with_short_ones() -> None:
    """It has 50 ms of every batch: a short one is in the next batch, and the long one goes on beside it."""

    async def run() -> Timed:
        inner = Timed()
        gathered = BatchingRetriever(inner)
        long = asyncio.create_task(gathered.search([f"long {number}" for number in range(400)], 1))
        for number in range(5):
            begun = len(inner.calls)
            assert await gathered.search([f"short {number}"], 1) == [found(f"short {number}", 1)]
            assert len(inner.calls) - begun <= 2
            assert not long.done()
        assert await long == [found(f"long {number}", 1) for number in range(400)]
        return inner

    calls = [queries for queries, _ in asyncio.run(run()).calls]
    assert max(map(len, calls)) <= 33
    beside = [queries for queries in calls if any(query.startswith("short") for query in queries)]
    assert all(any(query.startswith("long") for query in queries) for queries in beside)


def test_turns_go_round_between_two_long_requests_of_different_k() -> None:
    async def run() -> Timed:
        inner = Timed()
        gathered = BatchingRetriever(inner)
        long = [str(number) for number in range(100)]
        await asyncio.gather(gathered.search(long, 1), gathered.search(long, 2))
        return inner

    depths = [k for _, k in asyncio.run(run()).calls]
    assert len(depths) > 8
    assert all(first != second for first, second in pairwise(depths[:8]))


def test_request_that_waits_too_long_raises_overloaded() -> None:
    async def run() -> None:
        inner = Counting()
        gathered = BatchingRetriever(inner, batch=2, patience=0.05)
        await gathered.search(["warm"], 1)
        inner.open.clear()
        running = asyncio.create_task(gathered.search(["a", "b", "c"], 1))
        await settle()
        with pytest.raises(Overloaded, match=r"0\.05 s") as refusal:
            await gathered.search(["d"], 1)
        assert refusal.value.seconds > 0
        assert gathered.queued == 1
        inner.open.set()
        # One that was begun is finished, however long that takes.
        assert await running == [found(query, 1) for query in "abc"]

    asyncio.run(run())


def test_queue_limits_characters() -> None:
    async def run() -> None:
        inner = Counting()
        gathered = BatchingRetriever(inner, batch=1, characters=100)
        inner.open.clear()
        running = []
        for query in "ab":
            running.append(asyncio.create_task(gathered.search([query * 60], 1)))
            await settle()
        with pytest.raises(Overloaded):
            await gathered.search(["c" * 60], 1)
        inner.open.set()
        await asyncio.gather(*running)
        assert await gathered.search(["c" * 600], 1) == [found("c" * 600, 1)]

    asyncio.run(run())


def test_failure_affects_only_its_batch() -> None:
    async def run() -> tuple[list[list[SearchOutcome]], list[SearchOutcome]]:
        gathered = BatchingRetriever(Counting(), batch=2)
        together = await asyncio.gather(*(gathered.search([query], 1) for query in ("a", "b!", "c", "d")))
        return together, await gathered.search(["e"], 1)

    (first, second, *others), after = asyncio.run(run())
    for query, (answer,) in (("a", first), ("b!", second)):
        assert isinstance(answer, SearchUnavailable)
        assert (answer.query, answer.cause) == (query, "OSError: the disk is gone")
    assert [*others, after] == [[found("c", 1)], [found("d", 1)], [found("e", 1)]]


class Short:
    """Answers fewer queries than it is asked."""

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        return [found(query, k) for query in queries[1:]]


class Cancelling:
    """Cancels itself, as a search does whose own task was cancelled."""

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("inner", "cause"), [(Short(), "1 results for 2 queries"), (Cancelling(), "the search was cancelled")]
)
def test_retriever_that_breaks_its_contract_is_unavailable(inner: Short | Cancelling, cause: str) -> None:
    for answer in asyncio.run(BatchingRetriever(inner).search(["a", "b"], 1)):
        assert isinstance(answer, SearchUnavailable)
        assert cause in answer.cause


def test_works_in_consecutive_event_loops() -> None:
    gathered = BatchingRetriever(Counting())
    for query in "abc":
        assert asyncio.run(gathered.search([query], 1)) == [found(query, 1)]


def test_cancelled_loop_leaves_no_requests() -> None:
    class Endless:
        calls = 0

        async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
            self.calls += 1
            if self.calls == 1:
                await asyncio.Event().wait()
            return [found(query, k) for query in queries]

    gathered = BatchingRetriever(Endless())

    async def abandoned() -> None:
        tasks = [asyncio.create_task(gathered.search([query], 1)) for query in "abc"]
        await settle()
        assert not any(task.done() for task in tasks)

    asyncio.run(abandoned())
    assert gathered.queued == 0
    assert asyncio.run(gathered.search(["d"], 1)) == [found("d", 1)]


def test_two_concurrent_loops_are_refused() -> None:
    async def run() -> None:
        inner = Counting()
        inner.open.clear()
        gathered = BatchingRetriever(inner)
        running = asyncio.create_task(gathered.search(["a"], 1))
        await settle()
        with pytest.raises(RuntimeError, match="two event loops"):
            await asyncio.to_thread(lambda: asyncio.run(gathered.search(["b"], 1)))
        inner.open.set()
        await running

    asyncio.run(run())


def test_observer_is_called_for_every_batch() -> None:
    heard: list[tuple[int, float]] = []
    gathered = BatchingRetriever(Counting(), batch=2, observer=lambda count, seconds: heard.append((count, seconds)))
    asyncio.run(gathered.search(["a", "a", "b"], 1))
    assert [count for count, _ in heard] == [2, 1]
    assert all(seconds > 0 for _, seconds in heard)
