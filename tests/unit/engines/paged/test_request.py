"""The slot table: tokens wait in a ring buffer until their request is updated."""

import asyncio
from array import array
from collections.abc import Sequence

import numpy as np
import pytest

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.engines.paged.request import RING, Request, SlotTable


def make_request(slot: int, given: int = 3, seed: int = 0) -> Request:
    loop = asyncio.new_event_loop()
    future: asyncio.Future[Completion] = loop.create_future()
    loop.close()
    return Request(
        array("i", range(given)), given, Sampling(9, seed=seed), 9, 0, (0, slot), None, None, future, slot, [0]
    )


def land(table: SlotTable, slots: list[int], tokens: list[int], version: int = 0) -> None:
    table.record(np.array(slots), np.array(tokens), -np.array(tokens, dtype=float), version)


def test_each_request_gets_its_own_tokens_and_versions() -> None:
    table = SlotTable(4)
    first, second = make_request(0), make_request(2, given=5)
    table.assign(first)
    land(table, [0], [10])
    table.assign(second)
    land(table, [0, 2], [11, 21], version=1)
    land(table, [2, 0], [22, 12], version=1)
    table.update(first)
    assert first.sampled == [10, 11, 12]
    assert first.logprobs == [-10, -11, -12]
    assert first.versions == [0, 1, 1]
    land(table, [0, 2], [13, 23], version=2)
    table.update(first)
    table.update(second)
    assert first.sampled == [10, 11, 12, 13]
    assert (second.ids.tolist(), second.versions) == ([0, 1, 2, 3, 4, 21, 22, 23], [1, 1, 2])


def test_a_second_update_adds_nothing() -> None:
    table, request = SlotTable(1), make_request(0)
    table.assign(request)
    land(table, [0], [7])
    for _ in range(2):
        table.update(request)
    assert request.sampled == [7]


def test_updates_once_per_page_lose_nothing_when_the_ring_wraps() -> None:
    table, request = SlotTable(1), make_request(0)
    table.assign(request)
    for number in range(3 * RING + 5):
        land(table, [0], [number])
        if number % PAGE_SIZE == PAGE_SIZE - 1:
            table.update(request)
    table.update(request)
    assert request.sampled == list(range(3 * RING + 5))


def test_a_slot_distinguishes_successive_requests() -> None:
    table, before, after = SlotTable(2), make_request(1), make_request(1, given=6)
    table.assign(before)
    tenant = table.generation_S[1]
    table.vacate(before)
    table.assign(after)
    assert table.generation_S[1] != tenant
    assert table.requests[1] is after
    assert (table.received_S[1], table.launched_S[1]) == (0, 0)


def test_a_preempted_request_resumes() -> None:
    table, request = SlotTable(1), make_request(0)
    table.assign(request)
    land(table, [0], [7])
    land(table, [0], [8])
    table.update(request)
    table.vacate(request)
    table.assign(request)
    assert (table.received_S[0], table.launched_S[0]) == (2, 2)
    land(table, [0], [9])
    table.update(request)
    assert request.sampled == [7, 8, 9]


@pytest.mark.parametrize(("computed", "known"), [(2, 2), (3, 3), (5, 3)])
def test_computed_tokens_are_bounded_by_processed_tokens(computed: int, known: int) -> None:
    table, request = SlotTable(1), make_request(0)
    table.assign(request)
    table.computed_S[0] = computed
    assert table.computed_tokens(request) == known


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_seeds_of_64_bits(seed: int) -> None:
    table, request = SlotTable(1), make_request(0, seed=seed)
    table.assign(request)
    assert int(table.seed_S[0]) == seed


def test_request_that_finishes_while_it_streams_is_completed_after_its_last_token() -> None:
    """The engine's thread appends tokens and finishes requests while the event loop streams earlier ones."""
    streamed: list[int] = []

    async def main() -> Completion:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()

        def on_tokens(ids: Sequence[int]) -> None:
            streamed.extend(ids)
            if request.finish is None:  # as the engine's thread does at this moment
                request.ids.append(96)
                request.finish = Finish.LENGTH

        request = Request(array("i", [1, 165]), 1, Sampling(2), 2, 0, (0, 0), None, on_tokens, future)
        request.deliver()
        assert not future.done()
        request.deliver()
        return await future

    assert asyncio.run(main()).ids == tuple(streamed) == (165, 96)
