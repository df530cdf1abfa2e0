"""Credentials: tokens read from the environment, and secrets kept out of files, logs and error messages."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from sleuth.errors import ConfigError

MASK = "***"
_USER = re.compile(r"(?<=://)[^/?#\s\"'<>]*@")
_PARAMETER = re.compile(r"([?&;])([\w.-]++)=([^&#\s\"'<>]*+)")
_SECRET_WORDS = ("key", "token", "secret", "password", "passwd", "auth", "signature")


class Secrets:
    """Secret values, keyed by the name that replaces them in text."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._values)})"

    def redact(self, text: str) -> str:
        """Replace every secret in a text, including its JSON-escaped and URL-encoded forms."""
        for name, value in self._values.items():
            for form in (value, json.dumps(value)[1:-1], quote(value, safe=""), quote_plus(value)):
                text = text.replace(form, f"[{name}]")
        return text


def token_from_env(variable: str | None) -> str | None:
    """Return the bearer token in an environment variable, if named; raises ConfigError if the variable is empty."""
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(f"the environment variable {variable} is not set or empty; set it to the bearer token")
    return token


def authorization_header(token: str | None, source: str = "the token") -> dict[str, str]:
    """Return the authorization header of a bearer token, if any; `source` names the token in errors."""
    if token is None:
        return {}
    if not (token and token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"{source} is blank or contains characters that are not valid in a header; set it again")
    return {"authorization": f"Bearer {token}"}


def redact(text: str) -> str:
    """Mask user names, passwords and secret query parameters in every URL of a text."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(_mask_parameter, _USER.sub(f"{MASK}@", text))


def redact_tree(value: Any) -> Any:
    """Redact every string of a JSON value."""
    match value:
        case str():
            return redact(value)
        case dict():
            return {name: redact_tree(each) for name, each in value.items()}
        case list() | tuple():
            return [redact_tree(each) for each in value]
    return value


def is_redacted(value: object) -> bool:
    """Whether a value is a URL whose credentials were masked."""
    return isinstance(value, str) and "://" in value and (f"{MASK}@" in value or f"={MASK}" in value)


def _mask_parameter(parameter: re.Match[str]) -> str:
    is_secret = any(word in parameter[2].lower() for word in _SECRET_WORDS)
    return f"{parameter[1]}{parameter[2]}={MASK}" if is_secret else parameter[0]
