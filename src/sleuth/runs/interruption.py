"""SIGINT and SIGTERM: the first asks the work to stop where it can be resumed, the second ends the process at once."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from sleuth.errors import Interrupted

Result = TypeVar("Result")

LAUNCHED = "SLEUTH_LAUNCHED"  # in the environment of the ranks that `sleuth train --nproc` starts
SHOW_CURSOR = b"\x1b[?25h"
NOTICE = b"\nsleuth: stopping where the work can be resumed; press Ctrl-C again to end at once\n"


class Interruption:
    """The signal that this process was asked to stop by, if any, and what has to hear of it."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._deferred = False
        self._cancels: list[Callable[[], object]] = []

    def require_none(self) -> None:
        """Raises Interrupted where a signal came before."""
        if self.signal is not None:
            raise Interrupted(self.signal)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handles the signals while it is open."""
        before = {number: signal.signal(number, self._receive) for number in _signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.signal = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Only notes the first signal while it is open: the work inside looks for it where it can stop."""
        before, self._deferred = self._deferred, True
        try:
            yield
        finally:
            self._deferred = before

    async def cancelling(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of the work, which the first signal cancels."""
        if self.signal is not None:
            work.close()
            raise asyncio.CancelledError
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine runs in one

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        self._cancels.append(cancel)
        try:
            return await work
        finally:
            self._cancels.remove(cancel)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            # As safe as kill -9: whatever bears its final name is complete.
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


def _signals() -> list[signal.Signals]:
    """What asks this process to stop; a signal that it was started to ignore stays ignored."""
    if LAUNCHED in os.environ:
        # SIGTERM is how the launcher ends the ranks that are left when one has failed: they cannot save any more.
        return [signal.SIGINT]
    return [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]


INTERRUPTION = Interruption()


def run_interruptible(work: Coroutine[Any, Any, Result]) -> Result:
    """asyncio.run for work that the first signal cancels; raises Interrupted then."""
    try:
        return asyncio.run(INTERRUPTION.cancelling(work))
    except asyncio.CancelledError:
        INTERRUPTION.require_none()
        raise
