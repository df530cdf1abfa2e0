"""The vocabulary of an index on disk: from a term to its number, ready when opened, however many terms there are."""

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sleuth.corpus.arrays import open_array
from sleuth.errors import InputError

# A hash table with chains: terms of one bucket stand beside each other in TEXT, bucket after bucket.
BUCKETS = "terms.buckets.npy"
BORDERS = "terms.borders.npy"
TEXT = "terms.text.npy"
NUMBERS = "terms.numbers.npy"


class Vocabulary:
    """The numbers of the terms in a folder."""

    def __init__(self, folder: Path, size: int) -> None:
        borders = open_array(folder / BORDERS, size + 1)
        self._text = open_array(folder / TEXT, int(borders[-1])).data
        self._borders = borders.data
        self._numbers = open_array(folder / NUMBERS, size).data
        self._buckets = open_array(folder / BUCKETS, _buckets(size) + 1).data
        if self._buckets[-1] != size:
            raise InputError(f"the table {folder / BUCKETS} is not of {size} terms; build the index again")

    def number(self, term: str) -> int | None:
        """The number of a term; None for one the corpus does not hold."""
        sought = term.encode()
        bucket = zlib.crc32(sought) & (len(self._buckets) - 2)
        for place in range(self._buckets[bucket], self._buckets[bucket + 1]):
            if self._text[self._borders[place] : self._borders[place + 1]] == sought:
                return int(self._numbers[place])
        return None


def write(terms: Sequence[str], folder: Path) -> None:
    """Writes the table of the terms, each numbered by its place."""
    texts = [term.encode() for term in terms]
    count = _buckets(len(texts))
    buckets = np.fromiter(map(zlib.crc32, texts), np.int64, len(texts)) & (count - 1)
    order = np.argsort(buckets, kind="stable")
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    np.save(folder / BUCKETS, np.searchsorted(buckets[order], np.arange(count + 1)))
    np.save(folder / BORDERS, np.concatenate([[0], np.cumsum(lengths[order])]))
    np.save(folder / TEXT, np.frombuffer(b"".join(texts[place] for place in order), np.uint8))
    np.save(folder / NUMBERS, order.astype(np.int32))


def _buckets(terms: int) -> int:
    """A power of two, at least as many as terms."""
    return 1 << max(terms - 1, 1).bit_length()
