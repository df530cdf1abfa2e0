"""JSON on disk: one document a file, an object each."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sleuth.errors import InputError

FORMAT = 1  # of run folders, and of the trajectories in them

Row = dict[str, Any]


def read_json(path: Path) -> Row:
    """One JSON document."""
    return parsed(readable(path).read_bytes(), str(path))


def document(content: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON document, indented for people."""
    return json.dumps(content, allow_nan=False, indent=2).encode() + b"\n"


def parsed(text: bytes, place: str) -> Row:
    """The JSON object a text holds; `place` says in the error where it stands."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"{place} holds a {type(row).__name__}; expected a JSON object")
    return row


def readable(path: Path) -> Path:
    """The same path, where it is a file."""
    if not path.is_file():
        raise InputError(f"{path} is missing; give a file that a run wrote")
    return path
