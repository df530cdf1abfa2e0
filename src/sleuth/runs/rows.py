"""Rows of JSON lines, with the offsets beside them by which one row is found."""

import json
import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sleuth.errors import InputError
from sleuth.runs.documents import Row, parsed, readable
from sleuth.runs.failures import explained
from sleuth.runs.replacing import replacing


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes JSONL with an offsets file beside it; the rows appear only when their offsets are there."""
    starts = array("Q")
    with replacing(path) as rows_path, replacing(_offsets(path)) as offsets_path:
        with rows_path.open("wb") as file:
            for each in rows:
                starts.append(file.tell())
                file.write(_line(each))
        if sys.byteorder == "big":
            starts.byteswap()
        offsets_path.write_bytes(starts.tobytes())


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSONL file in order; a last line without its end is still being written and is left out."""
    for number, line in enumerate(_lines(path), start=1):
        yield parsed(line, f"{path}, line {number}")


def read_row(path: Path, n: int) -> Row:
    """Row `n`, counted from zero, found by the offsets beside the file."""
    with readable(_offsets(path)).open("rb") as file:
        rows = file.seek(0, os.SEEK_END) // 8
        if not 0 <= n < rows:
            raise InputError(f"{path} has {rows} rows, counted from 0, and no row {n}")
        file.seek(8 * n)
        start = int.from_bytes(file.read(8), "little")
    with readable(path).open("rb") as file:
        file.seek(start)
        return parsed(file.readline(), f"{path}, row {n}")


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Adds a line that is on the disk when this returns."""
    with explained(path), path.open("ab") as file:
        file.write(_line(row))
        file.flush()
        os.fsync(file.fileno())


def rewrite_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Puts these rows in the place of a file's own, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(b"".join(_line(each) for each in rows))


def _offsets(path: Path) -> Path:
    """Starts of the rows, an array of little-endian uint64."""
    return path.with_suffix(".offsets")


def _lines(path: Path) -> Iterator[bytes]:
    with readable(path).open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n"
