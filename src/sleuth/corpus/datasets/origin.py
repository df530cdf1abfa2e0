"""The row a question was made of, kept beside it, so that the Parquet written again is the one that was read.

What the question carries already stands in the kept row as {"$": "prompt"} and so on: said once, changed once. Numbers
that JSON has no word for are {"$": "NaN"}, {"$": "Infinity"} and {"$": "-Infinity"}; an object of the row's own that
looks like one of these holds its value in a list.
"""

import math
from typing import Any

from sleuth.records import Question

MARK = "$"
NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def folded(row: dict[str, Any], question: Question) -> dict[str, Any]:
    """A row with what is the question's own replaced by its name."""
    own = [(value, {MARK: name}) for name, value in _carried(question).items() if value is not None]
    return {key: _folded(value, own) for key, value in row.items()}


def strict(value: Any) -> Any:
    """A value with the numbers marked that JSON has no word for."""
    match value:
        case float() if not math.isfinite(value):
            return _number(value)
        case dict():
            return {key: strict(inner) for key, inner in value.items()}
        case list() | tuple():
            return [strict(inner) for inner in value]
        case _:
            return value


def unfolded(row: dict[str, Any], question: Question) -> dict[str, Any]:
    """The row as it stood, with what the question says now."""
    own = {**NUMBERS, **_carried(question)}
    return {key: _unfolded(value, own) for key, value in row.items()}


def _folded(value: Any, own: list[tuple[Any, dict[str, str]]]) -> Any:
    match value:
        case str() | list() if (mark := next((mark for each, mark in own if each == value), None)) is not None:
            return mark
        case float() if not math.isfinite(value):
            return _number(value)
        case {"$": inner} if len(value) == 1:
            return {MARK: [_folded(inner, own)]}
        case dict():
            return {key: _folded(inner, own) for key, inner in value.items()}
        case list() | tuple():  # the entries of a map come as tuples
            return [_folded(inner, own) for inner in value]
        case _:
            return value


def _number(value: float) -> dict[str, str]:
    return {MARK: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


def _unfolded(value: Any, own: dict[str, Any]) -> Any:
    match value:
        case {"$": str(name)} if len(value) == 1 and name in own:
            return own[name]
        case {"$": [inner]} if len(value) == 1:
            return {MARK: _unfolded(inner, own)}
        case dict():
            return {key: _unfolded(inner, own) for key, inner in value.items()}
        case list():
            return [_unfolded(inner, own) for inner in value]
        case _:
            return value


def _carried(question: Question) -> dict[str, Any]:
    return {
        "prompt": None if question.prompt is None else [dict(message) for message in question.prompt],
        "question": question.question,
        "golden_answers": list(question.golden_answers),
    }
