"""JSON lines of question files, plain or .gz."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sleuth.errors import InputError


def opened(path: Path, mode: str) -> IO[str]:
    """A text file, through gzip where its name ends in .gz."""
    if path.suffix == ".gz":
        return gzip.open(path, f"{mode}t", encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")


def lines(path: Path) -> Iterator[str]:
    """The lines of a file; one that cannot be read is an InputError."""
    try:
        with opened(path, "r") as file:
            yield from file
    except FileNotFoundError:
        raise InputError(f"the question file {path} does not exist; give a JSONL file of questions") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"the question file {path} cannot be read ({error}); give JSONL in UTF-8") from error


def parsed(text: str) -> dict[str, Any]:
    """The JSON object of a line; what is none is a ValueError that shows how it begins."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {text.strip()[:60]!r}") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, not {text.strip()[:60]!r}")
    return row
