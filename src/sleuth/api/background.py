"""The event loop behind the API: blocking calls work in scripts and in notebooks, whose own loop is running."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_lock = threading.Lock()
_loops: dict[int, tuple[asyncio.AbstractEventLoop, threading.Thread]] = {}  # by process id: threads do not survive fork


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the background loop and wait for it; an interrupt cancels it."""
    if threading.current_thread() is _background()[1]:
        work.close()
        raise RuntimeError("a blocking call inside the event loop of Sleuth would never return; await its _async form")
    future = _submit(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the background loop, and await it from any other loop."""
    return await asyncio.wrap_future(_submit(work))


class Stream(Generic[Item]):
    """Items that arrive over time, for `for` and `async for`; leaving the loop early cancels the work behind it."""

    def __init__(self, source: Callable[[], AsyncGenerator[Item, None]]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Item]:
        items = self._source()
        try:
            while (item := run(_next(items))) is not None:
                yield item
        finally:
            run(_close(items))

    async def __aiter__(self) -> AsyncIterator[Item]:
        items = self._source()
        try:
            while (item := await run_async(_next(items))) is not None:
                yield item
        finally:
            await run_async(_close(items))


async def _next(items: AsyncGenerator[Item, None]) -> Item | None:
    return await anext(items, None)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


def _submit(work: Coroutine[Any, Any, Result]) -> "Future[Result]":
    return asyncio.run_coroutine_threadsafe(work, _background()[0])


def _background() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    with _lock:
        if os.getpid() not in _loops:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="sleuth", daemon=True)
            thread.start()
            _loops[os.getpid()] = loop, thread
        return _loops[os.getpid()]
