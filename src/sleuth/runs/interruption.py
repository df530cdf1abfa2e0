"""Handling of SIGINT and SIGTERM: the first signal stops work at a resumable point, the second exits at once."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from sleuth.errors import Interrupted

Result = TypeVar("Result")

LAUNCHED = "SLEUTH_LAUNCHED"  # environment variable set for the ranks that `sleuth train --nproc` starts
SHOW_CURSOR = b"\x1b[?25h"
NOTICE = b"\nsleuth: stopping at the next point that can be resumed; press Ctrl-C again to stop at once\n"


class Interruption:
    """The signal that this process received, if any, and the tasks to cancel."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._deferred = False
        self._exits = True
        self._cancels: list[Callable[[], object]] = []

    def raise_if_interrupted(self) -> None:
        """Raise Interrupted if a signal was received."""
        if self.signal is not None:
            raise Interrupted(self.signal)

    @contextmanager
    def handle_signals(self, *, second_exits: bool = True) -> Iterator[None]:
        """Handle signals inside the context; signals that the process ignores stay ignored.

        The second signal exits the process, or raises KeyboardInterrupt. Only the main thread can handle signals.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if LAUNCHED in os.environ:
            # When a rank fails, the launcher sends SIGTERM to the others, which can no longer save.
            numbers = [signal.SIGINT]
        else:
            both = (signal.SIGINT, signal.SIGTERM)
            numbers = [number for number in both if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._receive) for number in numbers}
        self._exits = second_exits
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.signal = None

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Inside the context, only record the first signal; the work calls `raise_if_interrupted` where it can stop."""
        before, self._deferred = self._deferred, True
        try:
            yield
        finally:
            self._deferred = before

    async def cancel_on_signal(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await `work`; the first signal cancels it."""
        if self.signal is not None:
            work.close()
            raise asyncio.CancelledError
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101  coroutines run in a task

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        self._cancels.append(cancel)
        try:
            return await work
        finally:
            self._cancels.remove(cancel)

    def interrupt(self, number: int) -> None:
        """Record a signal that another process received for this one."""
        if self.signal is None:
            self.signal = number
            for cancel in list(self._cancels):
                cancel()

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None and not self._exits:
            raise KeyboardInterrupt
        if self.signal is not None:
            # As safe as kill -9: files under their final names are complete.
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR)
            os._exit(128 + number)
        self.signal = number
        if self._deferred and os.environ.get("RANK", "0") == "0":
            os.write(2, NOTICE)
        for cancel in list(self._cancels):
            cancel()
        if not self._cancels and not self._deferred:
            raise Interrupted(number)


INTERRUPTION = Interruption()


def run_interruptible(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine like `asyncio.run`; the first signal cancels it and raises Interrupted."""
    try:
        return asyncio.run(INTERRUPTION.cancel_on_signal(work))
    except asyncio.CancelledError:
        INTERRUPTION.raise_if_interrupted()
        raise
