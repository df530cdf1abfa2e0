"""The ids of a corpus and their order, for corpora whose ids do not fit into memory as objects."""

import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
from numpy.typing import NDArray

WORD = 8  # bytes of an id compared at a time
BLOCK = 1 << 17  # rows whose words are gathered at a time


class RepeatedId(ValueError):
    """Two rows have one id."""

    def __init__(self, name: str, first: int, second: int) -> None:
        super().__init__(f"rows {first} and {second} have the same id {name!r}")
        self.name, self.first, self.second = name, first, second


class Ids:
    """Ids by row, end to end in a file without a name in `folder`: memory holds only how long each is."""

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
        """The rows in the order of their ids as strings; two with one id are a RepeatedId.

        UTF-8 keeps the order of code points, so ids are compared as bytes: eight at a time as one number, and after the
        first time only those that are equal so far.
        """
        order = np.arange(len(self), dtype=np.uint32)
        places: slice | NDArray[np.int64] = slice(None)  # of the order, that are not settled yet
        ties = np.zeros(1, np.uint32)  # which of them are equal so far
        depth = 0
        while len(order[places]):
            words, left = self._words(order[places], depth)
            # `left` sets an id apart from the same one with NULs behind it: words are padded with zeros.
            sort = np.lexsort((left, words, ties) if depth else (left, words))
            order[places] = order[places][sort]
            words, left = words[sort], left[sort]
            same = (words[1:] == words[:-1]) & (left[1:] == left[:-1]) & (ties[1:] == ties[:-1] if depth else True)
            self._refuse_repeats(order[places], same & (left[1:] < WORD))
            tied = np.append(same, False) | np.append(False, same)
            ties = np.cumsum(np.append(True, ~same)[tied], dtype=np.uint32)
            places = np.flatnonzero(tied) if isinstance(places, slice) else places[tied]
            depth += WORD
        return order

    def _words(self, rows: NDArray[np.uint32], depth: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """The next bytes of each id as one number, with zeros where it ends, and how many they are."""
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

    def _refuse_repeats(self, rows: NDArray[np.uint32], repeated: NDArray[np.bool_]) -> None:
        if repeated.any():
            place = int(np.argmax(repeated))
            first, second = int(rows[place]), int(rows[place + 1])
            raise RepeatedId(self._name(first), first, second)

    def _name(self, row: int) -> str:
        return os.pread(self._file.fileno(), self._lengths[row], sum(self._lengths[:row])).decode()
