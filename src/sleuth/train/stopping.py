"""Stopping a run on SIGINT or SIGTERM: ranks agree on the step after which they stop."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sleuth.runs.interruption import INTERRUPTION
from sleuth.train.ranks import Ranks

Result = TypeVar("Result")


async def together(work: Coroutine[Any, Any, Result], ranks: Ranks) -> Result:
    """The result of this rank's work, or CancelledError on every rank where a signal reached any of them before.

    Every rank calls it: those that have finished learn here that another has not.
    """
    found: Result | None = None
    try:
        found = await INTERRUPTION.cancel_on_signal(work)
    except asyncio.CancelledError:
        if INTERRUPTION.signal is None:
            raise
    if signals := [
        number for theirs in ranks.gather([INTERRUPTION.signal], "signals received") for number in theirs if number
    ]:
        INTERRUPTION.signal = signals[0]
        raise asyncio.CancelledError
    assert found is not None  # noqa: S101  without a signal it was not cancelled
    return found
