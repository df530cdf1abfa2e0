"""Rate limiter, on a simulated clock."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.http.connections import RateLimiter


class Clock:
    """Time that passes only while someone sleeps."""

    def __init__(self, late: float = 0.0) -> None:
        self.now = 1000.0
        self.late = late

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late
        await asyncio.sleep(0)


def passed(throttle: RateLimiter, clock: Clock, count: int) -> list[float]:
    """The times, from now on, at which so many callers who came at once were let through."""

    async def crowd() -> list[float]:
        start = clock.now

        async def one() -> float:
            await throttle.acquire()
            return clock.now - start

        return await asyncio.gather(*(one() for _ in range(count)))

    return asyncio.run(crowd())


def throttle(rate: float | None, clock: Clock) -> RateLimiter:
    return RateLimiter(rate, clock=clock, sleep=clock.sleep)


@pytest.mark.parametrize("rate", [0.5, 3, 10, 20])
def test_callers_are_admitted_in_order(rate: float) -> None:
    clock = Clock()
    assert passed(throttle(rate, clock), clock, 30) == pytest.approx([n / rate for n in range(30)])


def test_no_rate_means_no_limit() -> None:
    clock = Clock()
    assert passed(throttle(None, clock), clock, 1000) == [0] * 1000


def test_late_timers_do_not_lower_a_high_rate() -> None:
    clock = Clock(late=0.002)
    assert passed(throttle(1000, clock), clock, 5000)[-1] == pytest.approx(5.0, rel=0.02)


@given(st.sampled_from([2.0, 10.0, 100.0, 1000.0]), st.lists(st.floats(0, 0.3), min_size=2, max_size=60))
@settings(max_examples=50, deadline=None)
def test_rate_holds_in_every_interval(rate: float, gaps: list[float]) -> None:
    clock = Clock()
    limited = throttle(rate, clock)
    times: list[float] = []
    for gap in gaps:
        clock.now += gap
        before = clock.now
        times += [before + each for each in passed(limited, clock, 3)]
    for first in range(0, len(times), 7):
        for last in range(first, len(times)):
            allowed = rate * (times[last] - times[first]) + max(1.0, rate / 20)
            assert last - first + 1 <= allowed + 1e-6


def test_idle_time_is_not_accumulated() -> None:
    clock = Clock()
    limited = throttle(10, clock)
    passed(limited, clock, 1)
    clock.now += 3600
    assert passed(limited, clock, 4) == pytest.approx([0, 0.1, 0.2, 0.3])


def test_rate_holds_from_one_event_loop_to_the_next() -> None:
    clock = Clock()
    limited = throttle(10, clock)
    assert passed(limited, clock, 5) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert passed(limited, clock, 3) == pytest.approx([0.1, 0.2, 0.3])


def test_cancelled_caller_takes_no_token() -> None:
    async def scene() -> float:
        limited = RateLimiter(10)
        await limited.acquire()
        started = asyncio.get_running_loop().time()
        waiting = [asyncio.create_task(limited.acquire()) for _ in range(4)]
        await asyncio.sleep(0.01)
        for task in waiting[:3]:
            task.cancel()
        await waiting[3]
        return asyncio.get_running_loop().time() - started

    assert 0.09 < asyncio.run(scene()) < 0.3  # four callers would need 0.4
