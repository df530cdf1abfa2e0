"""Passages in Parquet files, by pyarrow."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from sleuth.corpus.progress import Progress
from sleuth.errors import InputError

BATCH = 1024
BUFFER = 1 << 20
EXPECTED = 'the columns "id" and "contents", or "id", "title" and "text"'


def parquet_lines(files: Sequence[Path], progress: Progress) -> Iterator[bytes]:
    """The rows of Parquet files as lines of a corpus, read a batch at a time."""
    total = sum(_count(path) for path in files)
    done = 0
    for path in files:
        for number, row in enumerate(_rows(path), 1):
            try:
                yield _line(_passage(row))
            except ValueError as error:
                raise InputError(f"{path}, row {number}: {error}; expected {EXPECTED}") from error
            done += 1
            if done % BATCH == 0 or done == total:
                progress("reading tables", done, total)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        # Without a buffer of its own it would hold whole columns of a row group.
        with parquet.ParquetFile(path, buffer_size=BUFFER) as table:
            for batch in table.iter_batches(BATCH, columns=_columns(path, table.schema_arrow)):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _count(path: Path) -> int:
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} cannot be read ({' '.join(str(error).split())}); give a whole Parquet file")


def _columns(path: Path, schema: Any) -> list[str]:
    """The columns that are kept: all but vectors and raw bytes, which are no part of a passage."""
    kept = [field.name for field in schema if not _is_bulk(field.type)]
    names = set(kept)
    if "id" not in names or not ("contents" in names or {"title", "text"} <= names):
        raise InputError(f"{path} has the columns {', '.join(schema.names)}; expected {EXPECTED}")
    return kept


def _is_bulk(kind: Any) -> bool:
    types = pyarrow.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return bool(types.is_floating(kind.value_type)) or _is_bulk(kind.value_type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


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
