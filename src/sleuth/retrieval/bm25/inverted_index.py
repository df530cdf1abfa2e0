"""The inverted index on disk: memory-mapped postings with their BM25 scores, and the vocabulary."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import open_array, sample_positions
from sleuth.errors import InputError
from sleuth.runs.json_files import read_json

# File names of bm25s, which can open the folder as well.
SCORES = "data.csc.index.npy"
ROWS = "indices.csc.index.npy"
STARTS = "indptr.csc.index.npy"
TERMS = "vocab.index.json"
PARAMETERS = "params.index.json"
# Our own files. The vocabulary is a hash table with chaining: the terms of a bucket are adjacent in the text array.
MAXIMA = "maxima.npy"
BUCKETS = "terms.buckets.npy"
BORDERS = "terms.borders.npy"
TEXT = "terms.text.npy"
NUMBERS = "terms.numbers.npy"

PROBES = 1000
# Scores are multiples of this, so sums below 1024 are exact in float64 in any order. It is finer than float32 for
# every score above a millionth.
GRAIN = 2.0**-43


@dataclass(frozen=True, slots=True)
class InvertedIndex:
    """Memory-mapped arrays; the postings of term `t` are `starts[t]` to `starts[t + 1]`, sorted by row."""

    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    scores: NDArray[np.float32]
    maxima: NDArray[np.float32]  # highest score per term

    @classmethod
    def open(cls, folder: Path, passages: int) -> "InvertedIndex":
        """Open the arrays of a folder; raise InputError if they are damaged or of another corpus."""
        try:
            indexed = read_json(folder / PARAMETERS).get("num_docs")
        except InputError as error:
            raise InputError(f"{folder / PARAMETERS} is missing or damaged; build the index again") from error
        if indexed != passages:
            raise InputError(f"{folder} indexes {indexed} passages, the corpus has {passages}; build the index again")
        starts = open_array(folder / STARTS)
        if starts.dtype.kind not in "iu" or not len(starts) or starts[0] != 0 or (np.diff(starts) < 0).any():
            raise _damaged(folder / STARTS)
        rows, scores = (open_array(folder / name, int(starts[-1])) for name in (ROWS, SCORES))
        maxima = open_array(folder / MAXIMA, len(starts) - 1)
        sample = rows[sample_positions(len(rows), PROBES)]
        if rows.dtype.kind not in "iu" or ((sample < 0) | (sample >= passages)).any():
            raise _damaged(folder / ROWS)
        for name, array in {SCORES: scores, MAXIMA: maxima}.items():
            sample = array[sample_positions(len(array), PROBES)]
            if array.dtype.kind != "f" or not (np.isfinite(sample) & (sample > 0)).all():
                raise _damaged(folder / name)
        return cls(starts, rows, scores, maxima)


def _damaged(path: Path) -> InputError:
    return InputError(f"the array {path} contains invalid values; build the index again")


class Vocabulary:
    """Term numbers looked up on disk: opening takes no time, whatever the number of terms."""

    def __init__(self, folder: Path, size: int) -> None:
        borders = open_array(folder / BORDERS, size + 1)
        self._text = open_array(folder / TEXT, int(borders[-1])).data
        self._borders = borders.data
        self._numbers = open_array(folder / NUMBERS, size).data
        self._buckets = open_array(folder / BUCKETS, _bucket_count(size) + 1).data
        if self._buckets[-1] != size:
            raise InputError(f"the table {folder / BUCKETS} does not have {size} terms; build the index again")

    def number(self, term: str) -> int | None:
        """The number of a term; None if the corpus does not contain it."""
        sought = term.encode()
        bucket = zlib.crc32(sought) & (len(self._buckets) - 2)
        for entry in range(self._buckets[bucket], self._buckets[bucket + 1]):
            if self._text[self._borders[entry] : self._borders[entry + 1]] == sought:
                return int(self._numbers[entry])
        return None


def write_vocabulary(terms: Sequence[str], folder: Path) -> None:
    """Write the hash table of the terms, numbered by position."""
    texts = [term.encode() for term in terms]
    count = _bucket_count(len(texts))
    buckets = np.fromiter(map(zlib.crc32, texts), np.int64, len(texts)) & (count - 1)
    order = np.argsort(buckets, kind="stable")
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    np.save(folder / BUCKETS, np.searchsorted(buckets[order], np.arange(count + 1)))
    np.save(folder / BORDERS, np.concatenate([[0], np.cumsum(lengths[order])]))
    np.save(folder / TEXT, np.frombuffer(b"".join(texts[place] for place in order), np.uint8))
    np.save(folder / NUMBERS, order.astype(np.int32))


def _bucket_count(terms: int) -> int:
    """The smallest power of two that is at least the number of terms."""
    return 1 << max(terms - 1, 1).bit_length()
