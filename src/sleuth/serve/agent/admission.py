"""How many questions are answered at once: those that come on top wait their turn, for a bounded time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from math import ceil

from sleuth.serve.agent.problems import Denied

WEIGHT = 0.2  # of the last episode in the mean that guesses when the next one ends
ROOM = 8  # questions that may wait, for each place


class Admission:
    """Places for `places` episodes, and a waiting room: questions are admitted in the order in which they came."""

    def __init__(self, places: int, wait: float) -> None:
        self.places = places
        self.wait = wait
        self.taken = 0
        self._mean = 0.0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def place(self) -> Callable[[], None]:
        """Waits for a place and returns what gives it back; 429 where the wait would be, or was, too long."""
        if self.taken < self.places:
            self.taken += 1
        else:
            await self._turn()
        began = time.monotonic()

        def give_back() -> None:
            self._mean += WEIGHT * (time.monotonic() - began - self._mean)
            self._pass_on()

        return give_back

    async def _turn(self) -> None:
        """Waits until a place is passed on to this question."""
        if self.wait <= 0 or self.waiting >= ROOM * self.places or self._expected() > self.wait:
            raise self._full()
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(self.wait):
                await turn
        except BaseException as error:
            if not turn.cancelled():  # the place was passed on in the same moment
                self._pass_on()
            elif turn in self._queue:
                self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._full() from None
            raise

    def _pass_on(self) -> None:
        """Gives a place to the first who waits, or leaves it free."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.taken -= 1

    def _expected(self) -> float:
        """The seconds that a question that comes now would wait."""
        return self._mean * (self.waiting + 1) / self.places

    def _full(self) -> Denied:
        """A refusal that says when a question could be taken in: when its wait would be one that is allowed."""
        seconds = max(1, ceil(self._expected() - self.wait))
        return Denied(
            429,
            f"{self.taken} questions are being answered and {self.waiting} wait, which is all this server takes; "
            f"ask again in {seconds} s",
            headers={"Retry-After": str(seconds)},
        )
