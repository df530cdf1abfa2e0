"""JSON documents and JSONL files, with offset files that give random access to rows."""

import json
import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sleuth.errors import InputError
from sleuth.runs.atomic import atomic_write, explain_write_errors

Row = dict[str, Any]


def read_json(path: Path) -> Row:
    """Read a file that contains one JSON object."""
    return parse_object(require_file(path).read_bytes(), str(path))


def encode_json(content: Mapping[str, Any]) -> bytes:
    """Encode a JSON document with indentation."""
    return json.dumps(content, allow_nan=False, indent=2).encode() + b"\n"


def parse_object(text: bytes, place: str) -> Row:
    """Parse a JSON object; raise InputError with the location `place` if the text is anything else."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"{place} holds a {type(row).__name__}; expected a JSON object")
    return row


def require_file(path: Path) -> Path:
    """Return the path of an existing file; raise InputError if it is missing."""
    if not path.is_file():
        raise InputError(f"{path} is missing; give a file that a run wrote")
    return path


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Atomically write a JSONL file, after its offsets file."""
    starts = array("Q")
    with atomic_write(path) as rows_path, atomic_write(_offsets(path)) as offsets_path:
        with rows_path.open("wb") as file:
            for row in rows:
                starts.append(file.tell())
                file.write(_encode_row(row))
        if sys.byteorder == "big":
            starts.byteswap()
        offsets_path.write_bytes(starts.tobytes())


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a JSONL file; an unterminated last line is still being written and is skipped."""
    with require_file(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield parse_object(line, f"{path}, line {number}")


def read_row(path: Path, n: int) -> Row:
    """Read row `n`, counted from zero, using the offsets file."""
    with require_file(_offsets(path)).open("rb") as file:
        rows = file.seek(0, os.SEEK_END) // 8
        if not 0 <= n < rows:
            raise InputError(f"{path} has no row {n}; it has {rows} rows, counted from 0")
        file.seek(8 * n)
        start = int.from_bytes(file.read(8), "little")
    with require_file(path).open("rb") as file:
        file.seek(start)
        return parse_object(file.readline(), f"{path}, row {n}")


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row and flush it to disk."""
    with explain_write_errors(path), path.open("ab") as file:
        file.write(_encode_row(row))
        file.flush()
        os.fsync(file.fileno())


def rewrite_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace all rows of a file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(b"".join(map(_encode_row, rows)))


def _offsets(path: Path) -> Path:
    """Return the path of the offsets file, an array of little-endian uint64."""
    return path.with_suffix(".offsets")


def _encode_row(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n"
