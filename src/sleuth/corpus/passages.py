"""Passages of a corpus: streamed from JSONL, or read by row number without loading the rest."""

import gzip
import json
import os
import re
import weakref
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import open_array
from sleuth.corpus.bounded_lines import line_batches
from sleuth.errors import InputError
from sleuth.records import Passage

EXPECTED = 'a JSON object with the strings "id" and "contents"'
OFFSETS = "offsets.npy"  # where each row starts, and where the last ends
RANKS = "ranks.npy"  # the place of each row in the order of the ids
ORDER = "order.npy"  # the rows in that order
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def stream(path: Path) -> Iterator[Passage]:
    """The passages of a corpus JSONL, plain or .gz, in order; a bad line or an empty corpus is an InputError."""
    return (passage for _, passage in rows(path, lines(path)))


def rows(path: Path, raw: Iterable[bytes]) -> Iterator[tuple[bytes, Passage]]:
    """Each line of `path` that is not blank, with the passage it holds."""
    empty = True
    for number, line in enumerate(raw, 1):
        if line.isspace():
            continue
        empty = False
        try:
            passage = parse(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: {error}; expected {EXPECTED}") from error
        yield line, passage
    if empty:
        raise InputError(f"the corpus {path} is empty; expected on each line {EXPECTED}")


def lines(path: Path) -> Iterator[bytes]:
    """The raw lines of a corpus, plain or .gz; a file that cannot be read is an InputError."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for batch in line_batches(cast(BinaryIO, file), path):
                yield from batch
    except FileNotFoundError:
        raise InputError(f"the corpus {path} does not exist; give a JSONL file of passages") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"the corpus {path} cannot be read ({error}); give a JSONL file of passages") from error


class PassageStore:
    """The passages of a corpus by row and by id, in constant memory; safe to read from many threads."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Opens a plain corpus with the arrays that `survey` wrote into `folder`."""
        self._corpus = corpus
        self._offsets = open_array(folder / OFFSETS)
        if not len(self._offsets):
            raise InputError(f"the array {folder / OFFSETS} is empty; build the index again")
        self.ranks: NDArray[np.uint32] = open_array(folder / RANKS, len(self))
        self._order = open_array(folder / ORDER, len(self))
        try:
            self._file = os.open(corpus, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"the corpus {corpus} cannot be read ({error.strerror}); put it back") from error
        # Read by pread, not through a memory map: a corpus cut short while in use is then an error, not a crash.
        weakref.finalize(self, os.close, self._file)
        if os.fstat(self._file).st_size != self._offsets[-1]:
            raise InputError(
                f"the corpus {corpus} is not the one of {folder}: their sizes differ; build the index again"
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a corpus of {len(self)} passages")
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        try:
            return parse(os.pread(self._file, end - start, start))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self._corpus} changed after indexing: row {row} is unreadable ({error})") from error

    def row_of(self, name: str) -> int | None:
        """The row with that id, by bisection; None where there is none."""
        place = bisect_left(self._order, name, key=lambda row: self[int(row)].id)
        row = int(self._order[place]) if place < len(self) else None
        return row if row is not None and self[row].id == name else None

    def find(self, name: str) -> Passage | None:
        """The passage with that id; None where there is none."""
        row = self.row_of(name)
        return None if row is None else self[row]


def parse(line: bytes) -> Passage:
    """A corpus row; a ValueError says what is wrong with it."""
    row = parse_row(line)
    return Passage(row.pop("id"), row.pop("contents"), row)


def parse_row(line: bytes) -> dict[str, Any]:
    """A corpus row whose id and contents are strings; a ValueError says what is wrong with it."""
    row = parse_object(line)
    if type(row.get("id")) is int:
        row["id"] = str(row["id"])
    for key in ("id", "contents"):
        if type(row.get(key)) is not str:
            raise ValueError(f'"{key}" is {shortened(row[key])}' if key in row else f'"{key}" is missing')
    if not row["id"]:
        raise ValueError('"id" is empty')
    return row


def parse_object(line: bytes) -> dict[str, Any]:
    """The JSON object of a line, all of whose text can be encoded; a ValueError says what is wrong with it."""
    try:
        row = _json(line)
    except RecursionError as error:
        raise ValueError(f"it is nested too deep ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"it holds {shortened(row)}")
    # Half a surrogate pair is valid JSON and no text: tokenizers refuse it, at a time when it is hard to find.
    if SURROGATE.search(line):
        json.dumps(row, ensure_ascii=False).encode()
    return row


def _json(line: bytes) -> Any:
    """As json.loads at twice the speed, which spends its time on finding out that the line is UTF-8."""
    try:
        text = line.decode()
        value, end = DECODER.raw_decode(text)
    except ValueError:
        return json.loads(line.strip(), parse_constant=_nothing)
    # What a blank line may hold, a form feed say, stands behind the row before it, and JSON knows fewer spaces.
    return value if text[end:] in ("", "\n") else json.loads(line.strip(), parse_constant=_nothing)


def _nothing(constant: str) -> None:
    """NaN and infinities are no JSON, and a server could not pass them on: there is no value."""
    del constant


DECODER = json.JSONDecoder(parse_constant=_nothing)
