"""The event loop behind blocking calls."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable

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


async def slow_to_close(started: Callable[[], object], closed: list[bool]) -> AsyncGenerator[int, None]:
    try:
        yield 0
        started()
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.1)
        closed.append(True)


def test_interrupt_of_a_stream_waits_for_its_cleanup() -> None:
    closed: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        list(background.Stream(lambda: slow_to_close(interrupt, closed)))
    assert closed == [True]


def interrupt() -> None:
    """Do what Ctrl-C does: the main thread waits in a lock, which only a real signal wakes."""
    os.kill(os.getpid(), signal.SIGINT)


def test_cancelling_an_async_stream_waits_for_its_cleanup() -> None:
    closed: list[bool] = []

    async def read() -> None:
        reader, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert reader is not None
        async for _ in background.Stream(
            lambda: slow_to_close(lambda: loop.call_soon_threadsafe(reader.cancel), closed)
        ):
            continue

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(read())
    assert closed == [True]


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
