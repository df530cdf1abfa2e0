"""The event loop behind the API: blocking calls work in scripts and in notebooks, whose own loop is running."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_lock = threading.Lock()
_loops: dict[int, tuple[asyncio.AbstractEventLoop, threading.Thread]] = {}  # by process id: threads do not survive fork


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the background loop and wait for it; an interrupt cancels it and waits for its end."""
    if threading.current_thread() is _background()[1]:
        work.close()
        raise RuntimeError("a blocking call inside the event loop of Sleuth would never return; await its _async form")
    task = _Task(work)
    try:
        task.start()
        return task.outcome.result()
    except BaseException:
        task.cancel()
        wait([task.outcome])
        raise


async def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the background loop, and await it from any other loop; cancelling the caller cancels it."""
    task = _Task(work)
    task.start()
    outcome = asyncio.wrap_future(task.outcome)
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(outcome, return_exceptions=True)
        raise


class _Task(Generic[Result]):
    """A task in the background loop; it has an outcome only when it has ended, also after it was cancelled.

    The future of asyncio.run_coroutine_threadsafe is done as soon as it is cancelled, before the task has cleaned up.
    """

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self.outcome: Future[Result] = Future()
        self._work, self._loop = work, _background()[0]
        self._task: asyncio.Task[Result] | None = None

    def start(self) -> None:
        self._loop.call_soon_threadsafe(self._start)

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # the interrupt came before the start
            self._work.close()
            self.outcome.cancel()

    def _end(self, task: "asyncio.Task[Result]") -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self.outcome.set_result(task.result())
        else:
            self.outcome.set_exception(error)


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


def _background() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    with _lock:
        if os.getpid() not in _loops:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="sleuth", daemon=True)
            thread.start()
            _loops[os.getpid()] = loop, thread
        return _loops[os.getpid()]
