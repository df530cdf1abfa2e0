"""Several JSONL corpora as one: what stands in two of them is kept once."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.passages import rows
from sleuth.corpus.pieces import unpacked_lines
from sleuth.corpus.progress import Progress
from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.runs.atomic import atomic_write

# Digests stand for ids and contents, so that memory holds 24 bytes a passage.
DIGESTS = np.dtype([("high", "<u8"), ("low", "<u8"), ("contents", "<u8")])


def merge(files: Sequence[Path], out: Path, progress: Progress) -> None:
    """Writes the rows of all files in their order, one with the same id and contents as an earlier one left out.

    Contents are the same where they differ in spaces and capitals only. Different ones under one id are an InputError.
    """
    digests = bytearray()
    ends: list[int] = []
    sizes = [path.stat().st_size for path in files]
    with out.open("wb") as file:
        for path, before in zip(files, accumulate(sizes, initial=0), strict=False):
            raw = unpacked_lines(path, lambda done, before=before: progress("merging", before + done, sum(sizes)))  # type: ignore[misc]
            for line, passage in rows(path, raw):
                file.write(line.rstrip(b"\r\n") + b"\n")
                digests += _digest(passage)
            ends.append(len(digests) // DIGESTS.itemsize)
    repeated = _repeated(np.frombuffer(digests, DIGESTS), files, ends)
    if len(repeated):
        with atomic_write(out) as shorter, shorter.open("wb") as file:
            file.writelines(_without(out, repeated))


def _digest(passage: Passage) -> bytes:
    folded = " ".join(passage.contents.casefold().split())
    return blake2b(passage.id.encode(), digest_size=16).digest() + blake2b(folded.encode(), digest_size=8).digest()


def _repeated(digests: NDArray[np.void], files: Sequence[Path], ends: list[int]) -> NDArray[np.int64]:
    """The rows whose id stands in an earlier row too."""
    order = np.lexsort((digests["low"], digests["high"]))
    ordered = digests[order]
    earlier, later = ordered[:-1], ordered[1:]
    same = (earlier["high"] == later["high"]) & (earlier["low"] == later["low"])
    different = same & (earlier["contents"] != later["contents"])
    if different.any():
        place = int(np.argmax(different))
        first, second = (_place(int(order[each]), files, ends) for each in (place, place + 1))
        raise InputError(
            f"{first} and {second} have one id and different contents; give every passage an id of its own"
        )
    repeated: NDArray[np.int64] = order[1:][same]
    return repeated


def _place(row: int, files: Sequence[Path], ends: list[int]) -> str:
    """A row in words."""
    number = int(np.searchsorted(ends, row, "right"))
    start = ends[number - 1] if number else 0
    return f"passage {row - start + 1} of {files[number]}"


def _without(path: Path, left_out: NDArray[np.int64]) -> Iterator[bytes]:
    dropped = set(left_out.tolist())
    with path.open("rb") as file:
        yield from (line for row, line in enumerate(file) if row not in dropped)
