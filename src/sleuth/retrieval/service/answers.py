"""Bodies of the server: requests read from JSON, and answers written as JSON that every reader takes."""

import asyncio
import json
from collections.abc import Callable, Iterable
from reprlib import repr as shortened
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from sleuth.records import Hit
from sleuth.retrieval.service.limits import Refused

Request = TypeVar("Request", bound=BaseModel)

ROWS_AT_ONCE = 512  # a millisecond of encoding, after which others have their turn
LENIENT = 4 * 2**20  # bytes that are read a second time, by a slower reader
EXPECTED = '{"queries": ["..."], "topk": 3, "return_scores": true}'


def parsed(body: bytes, kind: type[Request], expected: str = EXPECTED) -> Request:
    """The request in a body; one that does not fit is refused in a sentence."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        if problem["type"] == "json_invalid" and rb"\u" in body and len(body) <= LENIENT:
            return _parsed_with_halves(body, kind, expected)
        raise Refused(422, f"{_sentence(problem)}; expected {expected}") from None


def _parsed_with_halves(body: bytes, kind: type[Request], expected: str) -> Request:
    """As `parsed`, for half surrogate pairs, which models write and strict readers refuse: they become a "?"."""
    try:
        content = json.loads(body)
        return kind.model_validate_json(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        raise Refused(422, f"{_sentence(problem)}; expected {expected}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"the body is no JSON ({error}); expected {expected}") from None


def _sentence(problem: Any) -> str:
    """What is wrong with a request, where, and the value found there."""
    if problem["type"] == "json_invalid":
        return f"the body is no JSON ({problem['msg'].removeprefix('Invalid JSON: ')})"
    place = ".".join(map(str, problem["loc"])) or "the body"
    if problem["type"] == "missing":
        return f"{place} is missing"
    return f"{place}: {problem['msg'][0].lower()}{problem['msg'][1:]}, and it is {shortened(problem['input'])}"


def encoded(value: object) -> bytes:
    """A value as JSON: numbers that JSON has not are null, and half a surrogate pair is an escape."""
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
        return json.dumps(finite, allow_nan=False).encode()


async def encoded_hits(answers: Iterable[list[Hit]], shape: Callable[[Hit], object]) -> bytes:
    """The body of an answer, written a part at a time, so that a large one does not hold up the others."""
    pieces, rows = [], 0
    for hits in answers:
        pieces.append(encoded([shape(hit) for hit in hits]))
        rows += len(hits)
        if rows >= ROWS_AT_ONCE:
            await asyncio.sleep(0)
            rows = 0
    return b'{"result":[' + b",".join(pieces) + b"]}"
