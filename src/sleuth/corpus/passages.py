"""Passages of a corpus: streamed from JSONL, or read by row number without loading the rest."""

import gzip
import json
import os
import weakref
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, BinaryIO

import numpy as np

from sleuth.corpus.arrays import open_array
from sleuth.errors import InputError
from sleuth.records import Passage

EXPECTED = 'a JSON object with the strings "id" and "contents"'
CHUNK = 1 << 16


def stream(path: Path) -> Iterator[Passage]:
    """The passages of a corpus JSONL, plain or .gz, in order; a bad line or an empty corpus is an InputError."""
    empty = True
    for number, line in enumerate(lines(path), 1):
        if line.isspace():
            continue
        empty = False
        try:
            passage = _parse(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: {error}; expected {EXPECTED}") from error
        yield passage
    if empty:
        raise InputError(f"the corpus {path} is empty; expected on each line {EXPECTED}")


def lines(path: Path) -> Iterator[bytes]:
    """The raw lines of a corpus, plain or .gz; a file that cannot be read is an InputError."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except FileNotFoundError:
        raise InputError(f"the corpus {path} does not exist; give a JSONL file of passages") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"the corpus {path} cannot be read ({error}); give a JSONL file of passages") from error


def build_offsets(corpus: Path, out: Path) -> int:
    """Writes where each passage of a plain corpus starts and the last one ends; returns how many passages there are."""
    with out.open("wb") as file:
        _write_header(file, 0)
        written = 0
        offsets = _offsets(corpus)
        while chunk := list(islice(offsets, CHUNK)):
            file.write(np.array(chunk, "<u8").tobytes())
            written += len(chunk)
        # numpy leaves room in the header for the first axis to grow, so it is rewritten in place.
        file.seek(0)
        _write_header(file, written)
    return written - 1


class PassageStore:
    """The passages of a corpus by row number, in constant memory; safe to read from many threads."""

    def __init__(self, corpus: Path, offsets: Path) -> None:
        self._corpus = corpus
        self._offsets = open_array(offsets)
        try:
            self._file = os.open(corpus, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"the corpus {corpus} cannot be read ({error.strerror}); put it back") from error
        # Read by pread, not through a memory map: a corpus cut short while in use is then an error, not a crash.
        weakref.finalize(self, os.close, self._file)
        if os.fstat(self._file).st_size != self._offsets[-1]:
            raise InputError(
                f"the corpus {corpus} is not the one of {offsets}: their sizes differ; build the index again"
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a corpus of {len(self)} passages")
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        try:
            return _parse(os.pread(self._file, end - start, start))
        except (OSError, ValueError) as error:
            raise InputError(f"{self._corpus} changed after indexing: row {row} is unreadable ({error})") from error


def _parse(line: bytes) -> Passage:
    """A corpus row; a ValueError says what is wrong with it."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"it holds {shortened(row)}")
    if type(row.get("id")) is int:
        row["id"] = str(row["id"])
    passage = Passage(_text(row, "id"), _text(row, "contents"), row)
    if not passage.id:
        raise ValueError('"id" is empty')
    return passage


def _text(row: dict[str, Any], key: str) -> str:
    """Takes a string out of the row."""
    if key not in row:
        raise ValueError(f'"{key}" is missing')
    value = row.pop(key)
    if not isinstance(value, str):
        raise ValueError(f'"{key}" is {shortened(value)}')
    # Half a surrogate pair is valid JSON and no text: tokenizers refuse it, at a time when it is hard to find.
    value.encode()
    return value


def _offsets(corpus: Path) -> Iterator[int]:
    """Starts of the lines that are not blank, then the size of the file."""
    position = 0
    for line in lines(corpus):
        if not line.isspace():
            yield position
        position += len(line)
    yield position


def _write_header(file: BinaryIO, length: int) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "<u8", "fortran_order": False, "shape": (length,)})
