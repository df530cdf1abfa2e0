"""Retries: ended by the deadline and by nothing else."""

import asyncio

from sleuth.http.client import RequestFailure, RetryPolicy

AWAY = RequestFailure("no connection", "nobody there")


def played(failures: int, deadline: float) -> tuple[str | RequestFailure, list[float]]:
    """What comes of a server that fails so often, and the pauses between, which are asked for and not made."""
    pauses: list[float] = []

    async def attempt(_: RequestFailure | None) -> str | RequestFailure:
        return AWAY if len(pauses) < failures else "an answer"

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def play() -> str | RequestFailure:
        ends = asyncio.get_running_loop().time() + deadline
        return await RetryPolicy(deadline, sleep=sleep).run(attempt, ends)

    return asyncio.run(play()), pauses


def test_attempts_are_not_counted() -> None:
    found, pauses = played(failures=100, deadline=3600.0)
    assert found == "an answer"
    assert len(pauses) == 100
    assert max(pauses) <= RetryPolicy(1.0).longest_pause


def test_no_pause_takes_more_than_half_of_the_time_left() -> None:
    """A server that is back shortly before the deadline is still asked."""
    _, pauses = played(failures=200, deadline=4.0)
    assert RetryPolicy(1.0).longest_pause / 8 < max(pauses) <= 2.0


def test_a_server_that_asks_for_more_time_than_is_left_is_not_waited_for() -> None:
    async def attempt(_: RequestFailure | None) -> str | RequestFailure:
        return RequestFailure("status 503", "closed", retry_after=120.0)

    async def play() -> str | RequestFailure:
        return await RetryPolicy(60.0).run(attempt, asyncio.get_running_loop().time() + 60.0)

    found = asyncio.run(play())
    assert isinstance(found, RequestFailure)
    assert found.cause.startswith("closed; ")
    assert "120 s" in found.cause
    assert "60 s" in found.cause
