"""How often a server may be asked: a token bucket that serves its callers in the order they came."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from sleuth.retrieval.service.slots import Slots

# Timers come a few milliseconds late. A bucket that holds what this long brings in makes up for them.
LATENESS = 0.05


class Throttle:
    """Lets `rate` callers a second through, and never more than `rate` x seconds + max(1, `rate` / 20) in any stretch.

    The bucket is kept as the time at which it will be full again, so it needs no task that fills it. Without a rate
    everyone passes.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._interval = 0.0 if rate is None else 1.0 / rate
        self._ahead = max(0.0, LATENESS - self._interval)
        self._clock = clock
        self._sleep = sleep
        self._full = float("-inf")
        self._turn = Slots(1)

    async def take(self) -> None:
        """Returns when the caller may go; one that is cancelled while it waits takes nothing from the others."""
        async with self._turn.here():
            while (wait := self._full - self._ahead - self._clock()) > 0:
                await self._sleep(wait)
            self._full = max(self._full, self._clock()) + self._interval
