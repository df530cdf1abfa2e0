"""Asking again: after which pauses, and until when."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sleuth.retrieval.service.exchange import Answer, Failure

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 8.0


class Retries:
    """Asks again until there is an answer, no point in asking, or no time left; attempts are not counted."""

    def __init__(self, deadline: float, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._deadline, self._sleep = deadline, sleep
        self._dice = random.Random()  # its own, so that seeded runs draw the same with and without retries

    async def first_answer(
        self, attempt: Callable[[Failure | None], Awaitable[Answer | Failure]], ends: float
    ) -> Answer | Failure:
        """The first answer before the loop's clock is at `ends`, or why there is none.

        An attempt is told how the one before it failed.
        """
        failures: list[Failure] = []
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout_at(ends):
                while isinstance(found := await attempt(failures[-1] if failures else None), Failure):
                    failures.append(found)
                    if not found.again:
                        return found
                    left = ends - clock() - found.after
                    if left < FIRST_PAUSE:
                        return self._too_late(found)
                    # Never longer than half of what is left: a server that comes back late is still asked.
                    await self._sleep(found.after + min(pause(len(failures), self._dice), left / 2))
                return found
        except TimeoutError:
            before = f"; the last of {len(failures)} failed attempts: {failures[-1].cause}" if failures else ""
            return Failure("deadline", f"no answer within the deadline of {self._deadline:g} s{before}")

    def _too_late(self, last: Failure) -> Failure:
        wait = max(last.after, FIRST_PAUSE)
        too_late = f"the next attempt, in {wait:.3g} s, would come after the deadline of {self._deadline:g} s"
        return replace(last, cause=f"{last.cause}; {too_late}")


def pause(failures: int, dice: random.Random) -> float:
    """Exponential back-off with full jitter: seconds before the next attempt, after so many failed ones."""
    return dice.uniform(0.0, min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 32)))
