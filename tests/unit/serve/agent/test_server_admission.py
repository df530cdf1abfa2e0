"""The waiting room: order, bounds, and how honest its refusals are."""

import asyncio
from collections.abc import Callable

import pytest

from sleuth.gateway.api import ApiError
from sleuth.serve.agent.server import QUEUED_PER_SLOT, Admission


async def soon() -> None:
    """Lets every task go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_places_are_passed_on_in_order() -> None:
    async def check() -> None:
        admission, order = Admission(1, wait=60), list[int]()
        first = await admission.acquire()

        async def enter(number: int) -> Callable[[], None]:
            give_back = await admission.acquire()
            order.append(number)
            return give_back

        waiting = [asyncio.create_task(enter(number)) for number in range(3)]
        await soon()
        assert (admission.active, admission.waiting) == (1, 3)
        waiting[1].cancel()
        first()
        (await waiting[0])()
        (await waiting[2])()
        assert (order, admission.active, admission.waiting) == ([0, 2], 0, 0)

    asyncio.run(check())


def test_a_place_passed_on_to_one_who_left_in_the_same_moment_is_not_lost() -> None:
    async def check() -> None:
        admission = Admission(1, wait=60)
        first = await admission.acquire()
        leaving = asyncio.create_task(admission.acquire())
        await soon()
        first()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert (admission.active, admission.waiting) == (0, 0)

    asyncio.run(check())


def test_the_room_is_bounded() -> None:
    async def check() -> None:
        admission = Admission(1, wait=60)
        await admission.acquire()
        waiting = [asyncio.create_task(admission.acquire()) for _ in range(QUEUED_PER_SLOT)]
        await soon()
        with pytest.raises(ApiError, match=f"and {QUEUED_PER_SLOT} wait"):
            await admission.acquire()
        for each in waiting:
            each.cancel()
        await soon()
        assert admission.waiting == 0

    asyncio.run(check())


def test_a_wait_that_would_be_too_long_is_refused_at_once_with_the_time_after_which_it_would_not_be() -> None:
    async def check() -> None:
        admission = Admission(2, wait=10)
        places = [await admission.acquire() for _ in range(2)]
        admission._mean_seconds = 50.0  # an episode takes so long: the first who waits does so for 25 s
        with pytest.raises(ApiError) as refused:
            await admission.acquire()
        assert refused.value.headers == {"Retry-After": "15"}
        for give_back in places:
            give_back()

    asyncio.run(check())
