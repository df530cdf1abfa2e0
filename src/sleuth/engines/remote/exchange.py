"""One request to an endpoint, sent again while that may help: the JSON of its answer, or an EngineFailure."""

import asyncio
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any

import httpx

from sleuth.engines.remote.endpoint import KEY, Endpoint
from sleuth.errors import EngineFailure

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
LONGEST_PAUSE = 30.0
LONGEST_WAIT = 120.0  # seconds that a server may ask for
SHOWN = 300  # characters of what a server says
FULL = re.compile(r"context.?length|context window|maximum context|too many tokens", re.IGNORECASE)
TELLING = ("message", "detail", "error")


class ContextFull(EngineFailure):
    """The conversation is longer than the model behind the endpoint reads."""


class Away(EngineFailure):
    """Nobody answers at the address, or not in time."""


class Refused(EngineFailure):
    """The server answers, and will not; `status` is its code."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Setback:
    """An attempt that failed: why, whether another may help, and how many seconds the server asks to be left alone."""

    failure: EngineFailure
    again: bool
    after: float = 0.0


async def asked(http: httpx.AsyncClient, endpoint: Endpoint, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """What the server answers to a body posted, or to a plain question where there is none."""
    clock = asyncio.get_running_loop().time
    ends = clock() + (2 * endpoint.timeout if endpoint.patience is None else endpoint.patience)
    for attempt in count():
        found = await _attempt(http, endpoint, path, body)
        if not isinstance(found, Setback):
            return found
        left = ends - clock() - found.after
        if not found.again or left < endpoint.pause or found.after > LONGEST_WAIT:
            raise found.failure
        pause = min(LONGEST_PAUSE, endpoint.pause * 2.0 ** min(attempt, 32), left / 2)
        # Dice of the system's, so that seeded work draws the same with and without retries.
        await asyncio.sleep(found.after + random.SystemRandom().uniform(0.0, pause))
    raise AssertionError("an endless loop ended")


async def _attempt(http: httpx.AsyncClient, endpoint: Endpoint, path: str, body: Mapping[str, Any] | None) -> Any:
    url = f"{endpoint.base}{path}"
    try:
        async with asyncio.timeout(endpoint.timeout):
            reply = await (
                http.get(url) if body is None else http.post(url, content=json.dumps(body).encode(), headers=_JSON)
            )
    except TimeoutError:
        return Setback(Away(f"{url} gave no answer within {endpoint.timeout:g} s"), again=True)
    except httpx.RequestError as error:
        return Setback(Away(f"{url} cannot be reached ({str(error) or type(error).__name__})"), again=True)
    if not reply.is_success:
        return _setback(reply, endpoint, url)
    try:
        return reply.json()
    except (ValueError, RecursionError):
        return Setback(EngineFailure(f"{url} answered with something that is not JSON"), again=True)


_JSON = {"content-type": "application/json"}


def _setback(reply: httpx.Response, endpoint: Endpoint, url: str) -> Setback:
    code, said = reply.status_code, sentence(reply.text, endpoint)
    if code in (400, 413) and FULL.search(said):
        return Setback(ContextFull(f"{url}: {said}"), again=False)
    told = f"{url} refuses with HTTP {code} ({said or 'nothing more'})"
    if code in (401, 403):
        told += f"; check the key in {endpoint.key_env or KEY}, or name its variable with --key-env"
    return Setback(Refused(code, told), code in PASSING, retry_after(reply.headers.get("retry-after", "")))


def sentence(body: str, endpoint: Endpoint) -> str:
    """What a server says about its refusal, on one line and without the key."""
    try:
        said = _message(json.loads(body))
    except (ValueError, RecursionError):
        said = body
    line = " ".join(endpoint.hidden(said).split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"


def retry_after(value: str) -> float:
    """The seconds a Retry-After header asks for, whether it gives their number or a date; 0 where it says nothing."""
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", value, re.ASCII):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _message(value: object) -> str:
    if isinstance(value, dict):
        told = next((value[key] for key in TELLING if value.get(key)), None)
        return json.dumps(value) if told is None else _message(told)
    return value if isinstance(value, str) else json.dumps(value)
