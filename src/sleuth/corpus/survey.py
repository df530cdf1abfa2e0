"""One pass over a corpus before it is indexed: every row checked, its place and its rank among the ids written down."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened

import numpy as np

from sleuth.corpus.arrays import GrowingArray
from sleuth.corpus.bounded_lines import line_batches
from sleuth.corpus.ids import Ids, RepeatedId
from sleuth.corpus.passages import EXPECTED, OFFSETS, ORDER, RANKS, parse_row
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.runs.atomic import atomic_write

BATCH = 1 << 22  # bytes


@dataclass(frozen=True, slots=True)
class Survey:
    """What a corpus holds."""

    passages: int
    bytes: int
    sha256: str


def survey(corpus: Path, folder: Path, progress: Progress = silent, source: Path | None = None) -> Survey:
    """Checks a plain corpus and writes offsets.npy, ranks.npy and order.npy into `folder`, for a PassageStore.

    A bad row, an id that comes twice and an empty corpus are an InputError, which calls the corpus `source`.
    """
    called = source or corpus
    folder.mkdir(parents=True, exist_ok=True)
    with Ids(folder) as ids:
        found = _read(corpus, folder, ids, called, progress)
        _write_order(ids, folder, called)
    return found


def _read(corpus: Path, folder: Path, ids: Ids, called: Path, progress: Progress) -> Survey:
    """Writes the offsets and gathers the ids."""
    total = corpus.stat().st_size if corpus.is_file() else 0
    digest, number, done = hashlib.sha256(), 1, 0
    with atomic_write(folder / OFFSETS) as path, GrowingArray(path) as offsets:
        for lines in _batches(corpus, called):
            digest.update(b"".join(lines))
            names = [_id(line, number + place, called) for place, line in enumerate(lines)]
            starts = np.cumsum([done, *map(len, lines)], dtype=np.uint64)
            offsets.extend(starts[:-1][[name is not None for name in names]])
            ids.extend([name for name in names if name is not None])
            number, done = number + len(lines), int(starts[-1])
            progress("reading", done, total)
        if not len(ids):
            raise InputError(f"the corpus {called} is empty; expected on each line {EXPECTED}")
        offsets.extend(np.array([done], np.uint64))
    return Survey(len(ids), done, digest.hexdigest())


def _batches(corpus: Path, called: Path) -> Iterator[list[bytes]]:
    try:
        with corpus.open("rb") as file:
            yield from line_batches(file, called, BATCH)
    except FileNotFoundError:
        raise InputError(f"the corpus {called} does not exist; give a JSONL file of passages") from None
    except OSError as error:
        raise InputError(f"the corpus {called} cannot be read ({error}); give a JSONL file of passages") from error


def _id(line: bytes, number: int, called: Path) -> str | None:
    """The id of a row; None where the line is blank."""
    if line.isspace():
        return None
    try:
        name: str = parse_row(line)["id"]
    except (ValueError, RecursionError) as error:
        raise InputError(f"{called}, line {number}: {error}; expected {EXPECTED}") from error
    return name


def _write_order(ids: Ids, folder: Path, called: Path) -> None:
    try:
        order = ids.order()
    except RepeatedId as repeated:
        rows = f"passages {repeated.first + 1} and {repeated.second + 1}"
        raise InputError(
            f"{called}: {rows} have the same id {shortened(repeated.name)}; give every passage an id of its own"
        ) from repeated
    ranks = np.empty(len(order), np.uint32)
    ranks[order] = np.arange(len(order), dtype=np.uint32)
    for name, values in ((RANKS, ranks), (ORDER, order)):
        with atomic_write(folder / name) as path, path.open("wb") as file:
            np.save(file, values)
