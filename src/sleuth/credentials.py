"""Credentials in addresses: kept out of every file and message."""

import re
from typing import Any

MASK = "***"
_USER = re.compile(r"(?<=://)[^/?#\s\"'<>]*@")
_PARAMETER = re.compile(r"([?&;])([\w.-]++)=([^&#\s\"'<>]*+)")
_SECRET = ("key", "token", "secret", "password", "passwd", "auth", "signature")


def redacted(text: str) -> str:
    """A text with the user and password of every address in it, and its secret query parameters, masked."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(_parameter, _USER.sub(f"{MASK}@", text))


def redacted_tree(value: Any) -> Any:
    """A JSON value with every text in it redacted."""
    match value:
        case str():
            return redacted(value)
        case dict():
            return {name: redacted_tree(each) for name, each in value.items()}
        case list() | tuple():
            return [redacted_tree(each) for each in value]
    return value


def is_masked(value: object) -> bool:
    """Whether a value is an address that lost its credentials."""
    return isinstance(value, str) and "://" in value and (f"{MASK}@" in value or f"={MASK}" in value)


def _parameter(found: re.Match[str]) -> str:
    secret = any(word in found[2].lower() for word in _SECRET)
    return f"{found[1]}{found[2]}={MASK}" if secret else found[0]
