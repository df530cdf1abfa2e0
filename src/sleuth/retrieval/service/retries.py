"""Asking again: how often, after which pauses, and until when."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sleuth.retrieval.service.exchange import Answer, Failure

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 8.0


class Retries:
    """Asks again until there is an answer or no point in asking, or else no attempt or no time is left."""

    def __init__(self, deadline: float, attempts: int) -> None:
        self._deadline, self._attempts = deadline, attempts
        self._dice = random.Random()  # its own, so that seeded runs draw the same with and without retries

    async def first_answer(
        self, attempt: Callable[[Failure | None], Awaitable[Answer | Failure]], ends: float
    ) -> Answer | Failure:
        """The first answer before the loop's clock is at `ends`, or why there is none.

        An attempt is told how the one before it failed.
        """
        failures: list[Failure] = []
        try:
            async with asyncio.timeout_at(ends):
                while isinstance(found := await attempt(failures[-1] if failures else None), Failure):
                    failures.append(found)
                    wait = found.after + pause(len(failures), self._dice)
                    if (last := self._last(found, len(failures), wait, ends)) is not None:
                        return last
                    await asyncio.sleep(wait)
                return found
        except TimeoutError:
            before = f"; the last of {len(failures)} failed attempts: {failures[-1].cause}" if failures else ""
            return Failure("deadline", f"no answer within the deadline of {self._deadline:g} s{before}")

    def _last(self, failure: Failure, tried: int, wait: float, ends: float) -> Failure | None:
        """The failure as the outcome of all attempts, None where another one is due."""
        if not failure.again:
            return failure
        if tried >= self._attempts:
            return replace(failure, cause=f"{failure.cause} (attempt {tried} of {self._attempts})")
        if wait >= ends - asyncio.get_running_loop().time():
            too_late = f"the next attempt, in {wait:.3g} s, would come after the deadline of {self._deadline:g} s"
            return replace(failure, cause=f"{failure.cause}; {too_late}")
        return None


def pause(failures: int, dice: random.Random) -> float:
    """Exponential back-off with full jitter: seconds before the next attempt, after so many failed ones."""
    return dice.uniform(0.0, min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 32)))
