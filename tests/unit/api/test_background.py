"""The event loop behind blocking calls."""

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from sleuth.api import background


async def where() -> str:
    return threading.current_thread().name


def test_work_runs_in_one_thread_whoever_asks() -> None:
    async def inside() -> set[str]:
        return {await background.run_async(where()), background.run(where())}

    assert {background.run(where())} | asyncio.run(inside()) == {"sleuth"}


def test_a_blocking_call_inside_the_loop_is_an_error_and_no_deadlock() -> None:
    async def blocking() -> str:
        return background.run(where())

    with pytest.raises(RuntimeError, match="_async"):
        background.run(blocking())


def test_cancelling_the_caller_cancels_the_work() -> None:
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def caller() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(background.run_async(wait()), 0.05)

    asyncio.run(caller())
    assert cancelled.wait(5)


async def numbers(closed: list[bool]) -> AsyncGenerator[int, None]:
    try:
        for number in range(3):
            yield number
    finally:
        closed.append(True)


def test_a_stream_works_in_both_kinds_of_loop_and_closes_its_source() -> None:
    closed: list[bool] = []
    stream = background.Stream(lambda: numbers(closed))

    async def collect() -> list[int]:
        return [number async for number in stream]

    assert list(stream) == asyncio.run(collect()) == [0, 1, 2]
    for _ in stream:
        break
    assert closed == [True] * 3
