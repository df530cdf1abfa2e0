"""JSON lines of question files, plain or .gz."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TextIO, cast

from sleuth.corpus.bounded_lines import text_lines
from sleuth.errors import InputError

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # halves of pairs are written so, and whole pairs too


def opened(path: Path, mode: str) -> IO[str]:
    """A text file, through gzip where its name ends in .gz; a byte order mark that is read is no part of it."""
    encoding = "utf-8-sig" if mode == "r" else "utf-8"
    if path.suffix == ".gz":
        return gzip.open(path, f"{mode}t", encoding=encoding)  # type: ignore[return-value]
    return path.open(mode, encoding=encoding)


def lines(path: Path) -> Iterator[str]:
    """The lines of a file; one that cannot be read is an InputError."""
    try:
        with opened(path, "r") as file:
            yield from text_lines(cast(TextIO, file), path)
    except FileNotFoundError:
        raise InputError(f"the question file {path} does not exist; give a JSONL file of questions") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"the question file {path} cannot be read ({error}); give JSONL in UTF-8") from error


def parsed(text: str) -> dict[str, Any]:
    """The JSON object of a line; what is none is a ValueError that shows how it begins.

    Half a surrogate pair, which JSON may hold and no text can, becomes a question mark, as it does for a tokenizer.
    """
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {text.strip()[:60]!r}") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, not {text.strip()[:60]!r}")
    return {clean(key): _cleaned(value) for key, value in row.items()} if SURROGATE.search(text) else row


def clean(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair."""
    return text.encode(errors="replace").decode()


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return clean(value)
        case list():
            return [_cleaned(inner) for inner in value]
        case dict():
            return {clean(key): _cleaned(inner) for key, inner in value.items()}
        case _:
            return value
