"""What went wrong with a request, whether asking again may help, and how long to wait before."""

import json
import random
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

PASSING = frozenset({429, 500, 502, 503, 504})
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 8.0
SENTENCE = 200  # characters of what a server says about its refusal
TELLING = ("message", "msg", "detail", "error")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request brought no hits: `kind` is counted, `cause` is read by people.

    `again` says whether another attempt may help, `after` how many seconds the server asks to be left alone.
    """

    kind: str
    cause: str
    again: bool = True
    after: float = 0.0


def broken(error: httpx.RequestError) -> Failure:
    """A connection that was not made, or did not last until the answer was there."""
    why = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return Failure("no connection", f"no connection to the server: {why}")
    return Failure("broken connection", f"the connection broke: {why}")


def refused(response: httpx.Response) -> Failure:
    """An answer with a status other than success."""
    code = response.status_code
    told = f"status {code} {httpx.codes.get_reason_phrase(code)}".strip()
    said = sentence(response.content)
    return Failure(
        f"status {code}",
        f"{told}: {said}" if said else told,
        again=code in PASSING,
        after=retry_after(response.headers.get("retry-after", ""), datetime.now(UTC)),
    )


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


def pause(failures: int, dice: random.Random) -> float:
    """Exponential back-off with full jitter: seconds before the next attempt, after so many failed ones."""
    return dice.uniform(0.0, min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 32)))


def sentence(body: bytes) -> str:
    """What a server says about its refusal, on one line: the message of a JSON body, or the body itself."""
    try:
        said = _message(json.loads(body))
    except (ValueError, RecursionError):
        said = body[: 4 * SENTENCE].decode("utf-8", "replace")
    line = " ".join(said.split())
    return line if len(line) <= SENTENCE else f"{line[:SENTENCE]}…"


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
