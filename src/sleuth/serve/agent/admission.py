"""Admission control: a bounded number of concurrent episodes, and a bounded queue for the rest."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from math import ceil

from sleuth.serve.agent.request import ApiError

SMOOTHING = 0.2  # weight of the last episode in the moving average of durations
QUEUED_PER_SLOT = 8


class Admission:
    """Slots for `slots` episodes and a first-come-first-served queue, in which a request waits up to `wait` seconds."""

    def __init__(self, slots: int, wait: float) -> None:
        self.slots = slots
        self.wait = wait
        self.active = 0
        self._mean_seconds = 0.0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def acquire(self) -> Callable[[], None]:
        """Wait for a slot and return the function that releases it; ApiError 429 if the wait is too long."""
        if self.active < self.slots:
            self.active += 1
        else:
            await self._wait_in_queue()
        start = time.monotonic()

        def release() -> None:
            self._mean_seconds += SMOOTHING * (time.monotonic() - start - self._mean_seconds)
            self._hand_over()

        return release

    async def _wait_in_queue(self) -> None:
        full = self.waiting >= QUEUED_PER_SLOT * self.slots
        if self.wait <= 0 or full or self._expected_wait() > self.wait:
            raise self._overloaded()
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(self.wait):
                await turn
        except BaseException as error:
            if not turn.cancelled():  # the slot was handed over at the same moment
                self._hand_over()
            elif turn in self._queue:
                self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._overloaded() from None
            raise

    def _hand_over(self) -> None:
        """Give a slot to the first request in the queue, or free it."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.active -= 1

    def _expected_wait(self) -> float:
        """The seconds that a request would wait if it came now."""
        return self._mean_seconds * (self.waiting + 1) / self.slots

    def _overloaded(self) -> ApiError:
        """An error with the time after which a request would be admitted."""
        seconds = max(1, ceil(self._expected_wait() - self.wait))
        return ApiError(
            429,
            f"the server is full: {self.active} questions are being answered and {self.waiting} wait; retry in "
            f"{seconds} s",
            headers={"Retry-After": str(seconds)},
        )
