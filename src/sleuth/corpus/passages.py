"""Passages of a corpus: streaming, a survey before indexing, and random access by row or id."""

import hashlib
import os
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shorten
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import GrowingArray, open_array
from sleuth.corpus.jsonl import corpus_batches, parse_corpus_line
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.runs.atomic import atomic_write

EXPECTED = 'a JSON object with the strings "id" and "contents"'
OFFSETS = "offsets.npy"  # start of each row, and the end of the last
RANKS = "ranks.npy"  # position of each row in the order of the ids
ORDER = "order.npy"  # rows in the order of the ids
BATCH = 1 << 22  # bytes surveyed at a time
WORD = 8  # bytes of an id compared at a time
BLOCK = 1 << 17  # ids whose words are gathered at a time


def parse_row(line: bytes) -> dict[str, Any]:
    """Parse a corpus row; raise ValueError unless its id and contents are strings."""
    row = parse_corpus_line(line)
    if type(row.get("id")) is int:
        row["id"] = str(row["id"])
    for key in ("id", "contents"):
        if type(row.get(key)) is not str:
            raise ValueError(f'"{key}" is {shorten(row[key])}' if key in row else f'"{key}" is missing')
    if not row["id"]:
        raise ValueError('"id" is empty')
    return row


def parse(line: bytes) -> Passage:
    """Parse a corpus row as a passage; raise ValueError if the row is invalid."""
    row = parse_row(line)
    return Passage(row.pop("id"), row.pop("contents"), row)


def stream(path: Path) -> Iterator[Passage]:
    """Yield the passages of a corpus, plain or .gz; raise InputError for a bad line or an empty corpus."""
    lines = (line for batch in corpus_batches(path) for line in batch)
    return (passage for _, passage in parse_lines(path, lines))


def parse_lines(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[bytes, Passage]]:
    """Yield each non-blank line of the corpus `path` with its passage."""
    empty = True
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        empty = False
        try:
            passage = parse(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: {error}; expected {EXPECTED}") from error
        yield line, passage
    if empty:
        raise InputError(f"the corpus {path} is empty; expected {EXPECTED} on each line")


class PassageStore:
    """The passages of a corpus by row and by id, in constant memory; safe to read from many threads."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Open an uncompressed corpus with the arrays that `survey` wrote into `folder`."""
        self._corpus = corpus
        self._offsets = open_array(folder / OFFSETS)
        if not len(self._offsets):
            raise InputError(f"the array {folder / OFFSETS} is empty; build the index again")
        self.ranks: NDArray[np.uint32] = open_array(folder / RANKS, len(self))
        self._order = open_array(folder / ORDER, len(self))
        try:
            self._file = os.open(corpus, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"the corpus {corpus} cannot be read ({error.strerror}); restore it") from error
        # pread instead of a memory map: a corpus truncated while in use then raises an error instead of crashing.
        weakref.finalize(self, os.close, self._file)
        if os.fstat(self._file).st_size != self._offsets[-1]:
            raise InputError(f"the corpus {corpus} does not belong to {folder}: sizes differ; build the index again")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is out of range for a corpus of {len(self)} passages")
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        try:
            return parse(os.pread(self._file, end - start, start))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self._corpus} changed after indexing: row {row} is unreadable ({error})") from error

    def row_of(self, name: str) -> int | None:
        """Return the row with the id `name`, found by bisection, or None."""
        place = bisect_left(self._order, name, key=lambda row: self[int(row)].id)
        row = int(self._order[place]) if place < len(self) else None
        return row if row is not None and self[row].id == name else None

    def find(self, name: str) -> Passage | None:
        """Return the passage with the id `name`, or None."""
        row = self.row_of(name)
        return None if row is None else self[row]


@dataclass(frozen=True, slots=True)
class Survey:
    """Size and checksum of a corpus."""

    passages: int
    bytes: int
    sha256: str


def survey(corpus: Path, folder: Path, progress: Progress = silent, source: Path | None = None) -> Survey:
    """Check every row of an uncompressed corpus and write the arrays of a PassageStore into `folder`.

    Raises InputError for a bad row, a repeated id or an empty corpus; error messages call the corpus `source`.
    """
    called = source or corpus
    folder.mkdir(parents=True, exist_ok=True)
    total = corpus.stat().st_size if corpus.is_file() else 0
    digest, number, done = hashlib.sha256(), 1, 0
    with Ids(folder) as ids:
        with atomic_write(folder / OFFSETS) as path, GrowingArray(path) as offsets:
            for lines in corpus_batches(corpus, called, BATCH):
                digest.update(b"".join(lines))
                names = [_row_id(line, number + place, called) for place, line in enumerate(lines)]
                starts = np.cumsum([done, *map(len, lines)], dtype=np.uint64)
                offsets.extend(starts[:-1][[name is not None for name in names]])
                ids.extend([name for name in names if name is not None])
                number, done = number + len(lines), int(starts[-1])
                progress("reading", done, total)
            if not len(ids):
                raise InputError(f"the corpus {called} is empty; expected {EXPECTED} on each line")
            offsets.extend(np.array([done], np.uint64))
        _write_order(ids, folder, called)
        return Survey(len(ids), done, digest.hexdigest())


def _row_id(line: bytes, number: int, called: Path) -> str | None:
    """Return the id of a row; None if the line is blank."""
    if line.isspace():
        return None
    try:
        name: str = parse_row(line)["id"]
    except (ValueError, RecursionError) as error:
        raise InputError(f"{called}, line {number}: {error}; expected {EXPECTED}") from error
    return name


def _write_order(ids: "Ids", folder: Path, called: Path) -> None:
    try:
        order = ids.order()
    except RepeatedId as repeated:
        rows = f"passages {repeated.first + 1} and {repeated.second + 1}"
        raise InputError(
            f"{called}: {rows} have the same id {shorten(repeated.name)}; give every passage a unique id"
        ) from repeated
    ranks = np.empty(len(order), np.uint32)
    ranks[order] = np.arange(len(order), dtype=np.uint32)
    for name, values in ((RANKS, ranks), (ORDER, order)):
        with atomic_write(folder / name) as path, path.open("wb") as file:
            np.save(file, values)


class RepeatedId(ValueError):
    """Raised if two rows have the same id."""

    def __init__(self, name: str, first: int, second: int) -> None:
        super().__init__(f"rows {first} and {second} have the same id {name!r}")
        self.name, self.first, self.second = name, first, second


class Ids:
    """The ids of a corpus, stored in an anonymous file in `folder`; only their lengths are kept in memory."""

    def __init__(self, folder: Path) -> None:
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - closed with this object
        self._lengths = array("I")

    def __enter__(self) -> "Ids":
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._lengths)

    def extend(self, ids: Sequence[str]) -> None:
        encoded = [each.encode() for each in ids]
        self._file.write(b"".join(encoded))
        self._lengths.extend(map(len, encoded))

    def order(self) -> NDArray[np.uint32]:
        """Return the rows sorted by id as strings; raise RepeatedId if two ids are equal."""
        # UTF-8 preserves code point order: compare eight bytes as one number, then continue with the ids still tied.
        order = np.arange(len(self), dtype=np.uint32)
        places: slice | NDArray[np.int64] = slice(None)  # positions in the order that are still tied
        ties = np.zeros(1, np.uint32)  # group of each tied position
        depth = 0
        while len(order[places]):
            words, left = self._words(order[places], depth)
            # Words are zero-padded: `left` distinguishes an id from the same id followed by NULs.
            sort = np.lexsort((left, words, ties) if depth else (left, words))
            order[places] = order[places][sort]
            words, left = words[sort], left[sort]
            same = (words[1:] == words[:-1]) & (left[1:] == left[:-1]) & (ties[1:] == ties[:-1] if depth else True)
            repeated = same & (left[1:] < WORD)
            if repeated.any():
                first, second = (int(order[places][int(np.argmax(repeated)) + offset]) for offset in (0, 1))
                raise RepeatedId(self._id(first), first, second)
            tied = np.append(same, False) | np.append(False, same)
            ties = np.cumsum(np.append(True, ~same)[tied], dtype=np.uint32)
            places = np.flatnonzero(tied) if isinstance(places, slice) else places[tied]
            depth += WORD
        return order

    def _words(self, rows: NDArray[np.uint32], depth: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Return the next bytes of each id as one zero-padded integer, and the number of these bytes."""
        lengths = np.frombuffer(self._lengths, np.uint32)
        ends = np.cumsum(lengths, dtype=np.int64)
        self._file.flush()
        flat = np.memmap(self._file, np.uint8, mode="r")
        words, left = np.empty(len(rows), np.uint64), np.empty(len(rows), np.uint8)
        steps = np.arange(WORD)
        for begin in range(0, len(rows), BLOCK):
            block = slice(begin, begin + BLOCK)
            some = rows[block]
            left[block] = np.clip(lengths[some].astype(np.int64) - depth, 0, WORD)
            starts = ends[some] - lengths[some] + depth
            letters = flat[np.minimum(starts[:, None] + steps, len(flat) - 1)]
            words[block] = np.where(steps < left[block, None], letters, np.uint8(0)).view(">u8")[:, 0]
        return words, left

    def _id(self, row: int) -> str:
        return os.pread(self._file.fileno(), self._lengths[row], sum(self._lengths[:row])).decode()
