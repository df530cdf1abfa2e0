"""HTTP client: retries until the deadline, backoff, Retry-After and error messages."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from sleuth.credentials import Secrets
from sleuth.http.client import RequestFailure, RetryPolicy, error_message, parse_retry_after

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


def test_number_of_attempts_is_not_limited() -> None:
    found, pauses = played(failures=100, deadline=3600.0)
    assert found == "an answer"
    assert len(pauses) == 100
    assert max(pauses) <= RetryPolicy(1.0).longest_pause


def test_pause_is_at_most_half_of_the_remaining_time() -> None:
    """A server that is back shortly before the deadline is still asked."""
    _, pauses = played(failures=200, deadline=4.0)
    assert RetryPolicy(1.0).longest_pause / 8 < max(pauses) <= 2.0


def test_retry_after_beyond_the_deadline_ends_retries() -> None:
    async def attempt(_: RequestFailure | None) -> str | RequestFailure:
        return RequestFailure("status 503", "closed", retry_after=120.0)

    async def play() -> str | RequestFailure:
        return await RetryPolicy(60.0).run(attempt, asyncio.get_running_loop().time() + 60.0)

    found = asyncio.run(play())
    assert isinstance(found, RequestFailure)
    assert found.cause.startswith("closed; ")
    assert "120 s" in found.cause
    assert "60 s" in found.cause


SECRET = "s3cr3t-token"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "no  such\\nindex"}}', "no such index"),
        (b'{"detail": [{"loc": ["body"], "msg": "Field required"}, {"msg": "Too long"}]}', "Field required; Too long"),
        (b'{"status": 3}', '{"status": 3}'),
        (b"plain words", "plain words"),
        (b"\xff" * 9, "\ufffd" * 9),
        (b"[" * 100_000, "[" * 300 + "…"),
        (b"x" * 400, "x" * 300 + "…"),
        (b"", ""),
    ],
)
def test_error_message_is_on_one_line(body: bytes, said: str) -> None:
    assert error_message(body, Secrets({})) == said


NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", 0.0),
        ("7", 7.0),
        (" 0.5 ", 0.5),
        ("-3", 0.0),
        ("soon", 0.0),
        ("٣", 0.0),
        ("9" * 400, float("inf")),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 12:00:30 -0000", 30.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Sun, 99 Mar 2026 11:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_parsed(value: str, seconds: float) -> None:
    assert parse_retry_after(value, NOW) == seconds


def test_backoff_doubles_up_to_a_maximum_with_full_jitter() -> None:
    for failures, ceiling in [(1, 0.1), (2, 0.2), (5, 1.6), (7, 6.4), (8, 8.0), (5000, 8.0)]:
        drawn = [RetryPolicy(60.0).pause(failures) for _ in range(500)]
        assert 0 <= min(drawn) < 0.05 * ceiling < 0.95 * ceiling < max(drawn) <= ceiling


def quoted(message: str) -> str:
    return json.dumps({"detail": message})


def nested(message: str) -> str:
    return json.dumps({"code": 7, "seen": [message]})


@pytest.mark.parametrize("token", [SECRET, 's3cr3t"to/ken\\', "s3cr3t  token+"])
@pytest.mark.parametrize("before", ["", "x" * 250, "x" * 280, "x" * 290, "x" * 298, " " * 795])
@pytest.mark.parametrize("form", [str, quoted, nested])
def test_truncated_message_contains_no_part_of_the_token(token: str, before: str, form: Callable[[str], str]) -> None:
    body = form(f"{before}{token}{' and more' * 100}").encode()
    said = error_message(body, Secrets({"token": token}))
    assert len(said) == 301
    assert "s3c" not in said
