"""How often a server may be asked: a token bucket that serves its callers in the order they came."""

import asyncio
import time
from collections.abc import Awaitable, Callable

# Timers come a few milliseconds late. A bucket that holds what this long brings in makes up for them.
LATENESS = 0.05


class Throttle:
    """Lets `rate` callers a second through, and never more than `rate` x seconds + max(1, `rate` / 20) in any stretch.

    The bucket is kept as the time at which it will be full again, so it needs no task that fills it.
    """

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._interval = 1.0 / rate
        self._ahead = max(0.0, LATENESS - self._interval)
        self._clock = clock
        self._sleep = sleep
        self._full = float("-inf")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue = asyncio.Lock()

    async def take(self) -> None:
        """Returns when the caller may go; one that is cancelled while it waits takes nothing from the others."""
        async with self._queue_of_this_loop():
            while (wait := self._full - self._ahead - self._clock()) > 0:
                await self._sleep(wait)
            self._full = max(self._full, self._clock()) + self._interval

    def _queue_of_this_loop(self) -> asyncio.Lock:
        """A lock wakes its waiters in order, and belongs to one event loop; the bucket outlives loops."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._queue = loop, asyncio.Lock()
        return self._queue
