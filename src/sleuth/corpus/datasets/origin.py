"""The row a question was made of, kept beside it, so that the Parquet written again is the one that was read.

What the question carries already stands in the kept row as {"$": "prompt"} and so on: said once, changed once.
"""

from typing import Any

from sleuth.records import Question

MARK = "$"


def folded(row: dict[str, Any], question: Question) -> dict[str, Any]:
    """A row with what is the question's own replaced by its name."""
    own = [(value, {MARK: name}) for name, value in _carried(question).items() if value is not None]
    return {key: _folded(value, own) for key, value in row.items()}


def unfolded(row: dict[str, Any], question: Question) -> dict[str, Any]:
    """The row as it stood, with what the question says now."""
    own = _carried(question)
    return {key: _unfolded(value, own) for key, value in row.items()}


def _folded(value: Any, own: list[tuple[Any, dict[str, str]]]) -> Any:
    match value:
        case str() | list() if (mark := next((mark for each, mark in own if each == value), None)) is not None:
            return mark
        case dict():
            return {key: _folded(inner, own) for key, inner in value.items()}
        case list():
            return [_folded(inner, own) for inner in value]
        case _:
            return value


def _unfolded(value: Any, own: dict[str, Any]) -> Any:
    match value:
        case {"$": str(name)} if len(value) == 1 and name in own:
            return own[name]
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
