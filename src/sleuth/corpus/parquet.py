"""Passages in Parquet files."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sleuth.corpus import tables
from sleuth.corpus.bounded_lines import LONGEST, too_long
from sleuth.corpus.progress import Progress
from sleuth.errors import InputError

BATCH = 1024  # rows between two words of progress
EXPECTED = 'the columns "id" and "contents", or "id", "title" and "text"'


def parquet_lines(files: Sequence[Path], progress: Progress) -> Iterator[bytes]:
    """The rows of Parquet files as lines of a corpus, read a batch at a time."""
    total = sum(tables.count(path) for path in files)
    done = 0
    for path in files:
        for number, row in enumerate(tables.rows(path, _columns(path)), 1):
            try:
                line = _line(_passage(row))
            except ValueError as error:
                raise InputError(f"{path}, row {number}: {error}; expected {EXPECTED}") from error
            if len(line) > LONGEST:
                raise too_long(path, number)
            yield line
            done += 1
            if done % BATCH == 0 or done == total:
                progress("reading tables", done, total)


def _columns(path: Path) -> list[str]:
    """The columns that are kept: all but vectors and raw bytes, which are no part of a passage."""
    schema = tables.schema(path)
    kept = tables.slim(schema)
    names = set(kept)
    if "id" not in names or not ("contents" in names or {"title", "text"} <= names):
        raise InputError(f"{path} has the columns {', '.join(schema.names)}; expected {EXPECTED}")
    return kept


def _passage(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the corpus; title and text are put together where there are no contents."""
    name = row.pop("id")
    if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
        raise ValueError(f'"id" is {name!r}')
    if "contents" not in row:
        row["contents"] = _contents(row["title"], row.pop("text"))
    contents = row.pop("contents")
    if not isinstance(contents, str):
        raise ValueError(f'"contents" is {contents!r}')
    return {"id": str(name), "contents": contents, **row}


def _contents(title: Any, text: Any) -> Any:
    return f'"{" ".join(title.split())}"\n{text}' if isinstance(title, str) and isinstance(text, str) else text


def _line(row: dict[str, Any]) -> bytes:
    """A row as JSON; dates and the like in words."""
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=str).encode() + b"\n"
    except ValueError:  # numbers that are none have no place in JSON
        known = json.loads(json.dumps(row, default=str), parse_constant=lambda _: None)
        return json.dumps(known, ensure_ascii=False).encode() + b"\n"
