"""What a row must hold to be a question: each value checked, what is wrong said as a ValueError."""

from typing import Any, TypeVar

Value = TypeVar("Value")
Message = dict[str, str]


def text(row: dict[str, Any], name: str) -> str:
    """A text that says something."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        found = f"it is {value!r}" if name in row else "it is missing"
        raise ValueError(f"{name} must be a text, and {found}")
    return value


def texts(row: dict[str, Any], name: str) -> tuple[str, ...]:
    """A list of texts, none where the row has no such key."""
    value = row.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} must be a list of texts, and it is {value!r}")
    return tuple(value)


def one_or_more(row: dict[str, Any], name: str) -> tuple[str, ...]:
    """A text or a list of texts."""
    value = row.get(name)
    return (value,) if isinstance(value, str) else texts(row, name)


def answers(given: tuple[str, ...], row: dict[str, Any], name: str) -> tuple[str, ...]:
    """The answers that say something: a blank one would make an empty answer right."""
    known = tuple(answer for answer in given if answer.strip())
    if not known:
        found = f"{name} is {row[name]!r}" if name in row else f"{name} is missing"
        raise ValueError(f"a question without answer: {found}, and one answer at least is expected")
    return known


def optional(row: dict[str, Any], name: str, kind: type[Value]) -> Value | None:
    """A value of exactly this type, or nothing."""
    value = row.get(name)
    if value is not None and type(value) is not kind:
        raise ValueError(f"{name} must be of type {kind.__name__}, and it is {value!r}")
    return value


def prompt(row: dict[str, Any]) -> tuple[Message, ...] | None:
    """The messages a row brings; parts of a message that are null are not there."""
    given = row.get("prompt")
    if given is None:
        return None
    if not isinstance(given, list) or not given or not all(map(_is_message, given)):
        raise ValueError(f"prompt must be a list of messages with role and content, and it is {given!r}")
    return tuple({key: value for key, value in message.items() if value is not None} for message in given)


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not {"role", "content"} <= set(value):
        return False
    known = {key: each for key, each in value.items() if each is not None or key in ("role", "content")}
    return all(isinstance(each, str) for each in known.values())
