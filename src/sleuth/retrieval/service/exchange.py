"""One request and what came of it: an answer, or a Failure that says why there is none and whether to ask again."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx

from sleuth.corpus.decoding import clean
from sleuth.retrieval.service.secrets import Secrets

PASSING = frozenset({429, 500, 502, 503, 504})
LONGEST = 200  # characters of what a server says
TELLING = ("message", "msg", "detail", "error")

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request brought no hits: `kind` is counted, `cause` is read by people.

    `again` says whether another attempt may help, `after` how many seconds the server asks to be left alone.
    """

    kind: str
    cause: str
    again: bool = True
    after: float = 0.0


async def exchange(
    sending: Awaitable[httpx.Response], seconds: float, read: Callable[[bytes], Answer], secrets: Secrets
) -> Answer | Failure:
    """What `read` makes of the answer, if one comes within so many seconds; its ValueError says that it is none."""
    try:
        async with asyncio.timeout(seconds):
            response = await sending
    except TimeoutError:
        return Failure("time-out", f"no answer within {seconds:g} s")
    except httpx.RequestError as error:
        return _broken(error)
    if not response.is_success:
        return _refused(response, secrets)
    try:
        return read(response.content)
    except (ValueError, OverflowError, RecursionError) as error:
        return Failure("not an answer", f"what the server sent is not an answer: {_told(str(error), secrets)}")


def retry_after(value: str, now: datetime) -> float:
    """The seconds a Retry-After header asks for, whether it gives their number or a date; 0 where it says nothing."""
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", value, re.ASCII):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def sentence(body: bytes, secrets: Secrets) -> str:
    """What a server says about its refusal, on one line: the message of a JSON body, or the body itself."""
    try:
        said = _message(json.loads(body))
    except (ValueError, RecursionError):
        said = body.decode("utf-8", "replace")
    return _told(said, secrets)


def _broken(error: httpx.RequestError) -> Failure:
    """A connection that was not made, or did not last until the answer was there."""
    why = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return Failure("no connection", f"no connection to the server: {why}")
    return Failure("broken connection", f"the connection broke: {why}")


def _refused(response: httpx.Response, secrets: Secrets) -> Failure:
    """An answer with a status other than success."""
    code = response.status_code
    told = f"status {code} {httpx.codes.get_reason_phrase(code)}".strip()
    said = sentence(response.content, secrets)
    return Failure(
        f"status {code}",
        f"{told}: {said}" if said else told,
        again=code in PASSING,
        after=retry_after(response.headers.get("retry-after", ""), datetime.now(UTC)),
    )


def _message(value: object) -> str:
    match value:
        case str():
            return value
        case list():
            return "; ".join(_message(each) for each in value)
        case dict():
            told = next((value[key] for key in TELLING if value.get(key)), None)
            return json.dumps(value) if told is None else _message(told)
        case _:
            return json.dumps(value)


def _told(said: str, secrets: Secrets) -> str:
    """The words of a server, on one line; secrets go before it is cut, which could leave half of one."""
    line = " ".join(secrets.hidden(clean(said)).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
