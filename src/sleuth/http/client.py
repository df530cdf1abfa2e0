"""Outgoing requests: failures returned as values, and retries with exponential backoff until a deadline."""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx

from sleuth.credentials import Secrets
from sleuth.errors import ConfigError
from sleuth.http.connections import ConnectionPool, RateLimiter

RETRYABLE_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
MAX_MESSAGE = 300  # characters of a server's error message
MESSAGE_FIELDS = ("message", "msg", "detail", "error")
NO_SECRETS = Secrets({})

Result = TypeVar("Result")
Send = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]
Parse = Callable[[bytes], Result]


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request failed: `kind` for metrics, `cause` for messages; `retry_after` is the requested wait (s)."""

    kind: str
    cause: str
    retryable: bool = True
    retry_after: float = 0.0
    status: int | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retry retryable failures until the deadline, after exponential backoff with full jitter.

    The number of attempts is not limited. With `interrupt` the deadline also ends an attempt in progress.
    """

    deadline: float
    first_pause: float = 0.1
    longest_pause: float = 8.0
    interrupt: bool = True
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(
        self, attempt: Callable[[RequestFailure | None], Awaitable[Result | RequestFailure]], ends: float | None = None
    ) -> Result | RequestFailure:
        """Call `attempt` with the previous failure until it succeeds; `ends` overrides the deadline, in loop time."""
        clock = asyncio.get_running_loop().time
        ends = clock() + self.deadline if ends is None else ends
        failures: list[RequestFailure] = []
        try:
            async with asyncio.timeout_at(ends if self.interrupt else None):
                while isinstance(result := await attempt(failures[-1] if failures else None), RequestFailure):
                    failures.append(result)
                    if not result.retryable:
                        return result
                    remaining = ends - clock() - result.retry_after
                    if remaining < self.first_pause:
                        wait = max(result.retry_after, self.first_pause)
                        cause = f"the next retry, in {wait:.3g} s, would exceed the deadline of {self.deadline:g} s"
                        return replace(result, cause=f"{result.cause}; {cause}")
                    # At most half of the remaining time, so that a server that recovers late is still reached.
                    await self.sleep(result.retry_after + min(self.pause(len(failures)), remaining / 2))
                return result
        except TimeoutError:
            last = f"; last of {len(failures)} failed attempts: {failures[-1].cause}" if failures else ""
            return RequestFailure("deadline", f"no response within the deadline of {self.deadline:g} s{last}")

    def pause(self, failures: int) -> float:
        """Return a random wait in seconds after this many failures, without using the seeded random generator."""
        longest = min(self.longest_pause, self.first_pause * 2.0 ** min(failures - 1, 32))
        return random.SystemRandom().uniform(0.0, longest)


@dataclass(slots=True)
class RequestCounts:
    """Number of requests sent, and of failures and retries by kind of failure.

    A request cancelled by the deadline or the caller is a failure of the kind "cut off".
    """

    requests: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)


class ServiceClient:
    """Requests to one service with limits on concurrency and rate, a timeout per attempt, and retries until a deadline.

    `connect` creates the transport of a connection. `explain` may replace a failure with a more helpful one.
    """

    def __init__(
        self,
        connect: Callable[[], httpx.AsyncBaseTransport],
        *,
        concurrency: int,
        deadline: float,
        rate: float | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        secrets: Secrets = NO_SECRETS,
        explain: Callable[[RequestFailure], RequestFailure] = lambda failure: failure,
    ) -> None:
        self.deadline, self._timeout = deadline, deadline / 2 if timeout is None else timeout
        check_positive(concurrency=concurrency, rate=1 if rate is None else rate)
        check_positive(deadline=deadline, timeout=self._timeout)
        if self._timeout > deadline:
            raise ConfigError(f"timeout is {timeout}, longer than the deadline of {deadline}; use a shorter one")
        self._connections = ConnectionPool(concurrency, connect, headers or {})
        self._limiter = RateLimiter(rate)
        self._secrets, self._explain = secrets, explain
        self.counts = RequestCounts()

    async def request(self, send: Send, parse: Parse[Result], ends: float | None = None) -> Result | RequestFailure:
        """Return the parsed response of the first successful attempt, or the last failure with secrets redacted."""

        async def attempt(previous: RequestFailure | None) -> Result | RequestFailure:
            async with self._connections.connection() as client:
                await self._limiter.acquire()
                self.counts.requests += 1
                if previous is not None:
                    self.counts.retries[previous.kind] += 1
                try:
                    result = await receive(send(client), self._timeout, parse, self._secrets)
                except asyncio.CancelledError:
                    self.counts.failures["cut off"] += 1
                    raise
            if isinstance(result, RequestFailure):
                result = self._explain(result)
                self.counts.failures[result.kind] += 1
            return result

        result = await RetryPolicy(self.deadline).run(attempt, ends)
        if isinstance(result, RequestFailure):
            return replace(result, cause=self._secrets.redact(result.cause))
        return result

    async def aclose(self) -> None:
        """Close the connections of the running event loop; otherwise they are closed when the loop ends."""
        await self._connections.aclose()


async def receive(
    response: Awaitable[httpx.Response], seconds: float, parse: Parse[Result], secrets: Secrets
) -> Result | RequestFailure:
    """Await and parse one response; timeouts, connection errors, error statuses and ValueErrors become failures."""
    try:
        async with asyncio.timeout(seconds):
            received = await response
    except TimeoutError:
        return RequestFailure("time-out", f"no response within {seconds:g} s")
    except (httpx.ConnectError, httpx.ProxyError) as error:
        return RequestFailure("no connection", f"cannot connect to the server: {str(error) or type(error).__name__}")
    except httpx.RequestError as error:
        return RequestFailure("broken connection", f"the connection broke: {str(error) or type(error).__name__}")
    if not received.is_success:
        status = received.status_code
        cause = f"status {status} {httpx.codes.get_reason_phrase(status)}".strip()
        if message := error_message(received.content, secrets):
            cause += f": {message}"
        wait = parse_retry_after(received.headers.get("retry-after", ""), datetime.now(UTC))
        return RequestFailure(f"status {status}", cause, status in RETRYABLE_STATUSES, wait, status)
    try:
        return parse(received.content)
    except (ValueError, OverflowError, RecursionError) as error:
        problem = f"invalid JSON ({error})" if isinstance(error, json.JSONDecodeError) else str(error)
        return RequestFailure("not an answer", f"unexpected response: {_one_line(problem, secrets)}")


def parse_retry_after(value: str, now: datetime) -> float:
    """Return the seconds of a Retry-After header, given as a number or a date; 0 if it is absent or invalid."""
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", value, re.ASCII):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds())


def error_message(body: bytes | str, secrets: Secrets = NO_SECRETS) -> str:
    """Return the message in the body of an error response, on one line and without secrets."""
    try:
        message = _message(json.loads(body))
    except (ValueError, RecursionError):
        message = body if isinstance(body, str) else body.decode("utf-8", "replace")
    return _one_line(message, secrets)


def check_positive(**settings: float) -> None:
    """Raise ConfigError if a setting is not above 0."""
    for name, value in settings.items():
        if not value > 0:
            raise ConfigError(f"{name} is {value}; expected a number above 0")


def _message(value: object) -> str:
    match value:
        case str():
            return value
        case list():
            return "; ".join(map(_message, value))
        case dict():
            inner = next((value[field] for field in MESSAGE_FIELDS if value.get(field)), None)
            return json.dumps(value) if inner is None else _message(inner)
        case _:
            return json.dumps(value)


def _one_line(text: str, secrets: Secrets) -> str:
    """Redact secrets, collapse the text to one line, and only then truncate it."""
    printable = text.replace("\0", "").encode("utf-8", "replace").decode()
    line = " ".join(secrets.redact(printable).split())
    return line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}…"
