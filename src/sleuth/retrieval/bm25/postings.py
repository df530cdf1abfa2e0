"""Postings of a block of passages: which terms occur in which rows, and how often."""

import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import open_array
from sleuth.errors import InputError
from sleuth.retrieval.bm25.analyzer import Analyzer
from sleuth.runs.atomic import atomic_write

NOT_INDEXED = -1
CACHE_SIZE = 1 << 19
RADIX = 1 << 16

Numbers = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Postings:
    """The terms of a block in order of first occurrence; the postings of a term are contiguous and sorted by row."""

    terms: list[str]
    counts: Numbers  # rows per term
    rows: Numbers  # relative to the first row of the block
    frequencies: Numbers  # occurrences of the term in the row
    lengths: Numbers  # words per row

    def write(self, path: Path) -> None:
        """Write all parts as one array, atomically."""
        text = "\n".join(self.terms).encode()
        letters = np.frombuffer(text.ljust(-(-len(text) // 4) * 4, b"\n"), np.uint32)
        parts = (self.lengths, self.counts, self.rows, self.frequencies, letters)
        body = np.concatenate(parts)
        header = np.array([zlib.crc32(body.data), *map(len, parts)], np.uint32)
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.save(file, np.concatenate([header, body]))

    @classmethod
    def read(cls, path: Path, *, verify: bool = False) -> "Postings":
        """Open a block memory-mapped; raise InputError if it is damaged."""
        stored = open_array(path)
        header, body = stored[:6], stored[6:]
        if len(header) < 6 or len(body) != header[1:].sum() or (verify and zlib.crc32(body.data) != header[0]):
            raise InputError(f"the block {path} is damaged; remove it and build the index again")
        lengths, counts, rows, frequencies, letters, _ = np.split(body, np.cumsum(header[1:].astype(np.int64)))
        terms = letters.tobytes().rstrip(b"\n").decode().split("\n") if len(letters) else []
        return cls(terms, counts, rows, frequencies, lengths)


class TermNumbers(dict[str, int]):
    """Cache from tokens to term numbers, kept across blocks because words repeat."""

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self._numbers: dict[str, int] = {}
        self._analyzer = analyzer

    def __missing__(self, token: str) -> int:
        term = self._analyzer.term(token)
        number = NOT_INDEXED if term is None else self._numbers.setdefault(term, len(self._numbers))
        self[token] = number
        return number

    def encode(self, texts: Iterable[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the term numbers of all tokens of the texts, concatenated, and the number of tokens per text."""
        flat, ends = array("i"), array("q", [0])
        for text in texts:
            flat.extend(map(self.__getitem__, self._analyzer.tokens(text)))
            ends.append(len(flat))
        return np.array(flat, np.int32), np.diff(ends)

    def terms(self) -> list[str]:
        """The terms by number."""
        return list(self._numbers)

    def clear(self) -> None:
        super().clear()
        self._numbers.clear()


def invert(texts: Iterable[str], term_numbers: TermNumbers) -> Postings:
    """Compute the postings of texts, one row each."""
    if len(term_numbers) > CACHE_SIZE:
        term_numbers.clear()
    numbers, counts = term_numbers.encode(texts)
    indexed = numbers != NOT_INDEXED
    rows = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)[indexed]
    numbers, used = _renumber(numbers[indexed])
    terms = term_numbers.terms()
    lengths = np.bincount(rows, minlength=len(counts)).astype(np.uint32)
    return Postings([terms[number] for number in used.tolist()], *_count(numbers, rows, len(used)), lengths)


def _renumber(numbers: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """Renumber by first occurrence, from 0; also return the old number of each new one."""
    first = np.full(numbers.max(initial=-1) + 1, len(numbers))
    # Assigned from last to first, so the first occurrence remains.
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    used = np.flatnonzero(first < len(numbers))
    used = used[np.argsort(first[used])]
    renumbered = np.empty(len(first), np.int32)
    renumbered[used] = np.arange(len(used), dtype=np.int32)
    return renumbered[numbers], used


def _count(numbers: NDArray[np.int32], rows: Numbers, terms: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return rows per term, then row and frequency of each (term, row) pair, sorted; `rows` must be ascending."""
    # A stable radix sort in two passes: numpy sorts 16-bit integers by radix, many times faster than wider ones.
    order = np.argsort((numbers % RADIX).astype(np.uint16), kind="stable")
    if len(numbers) and numbers.max() >= RADIX:
        order = order[np.argsort((numbers[order] // RADIX).astype(np.uint16), kind="stable")]
    numbers, rows = numbers[order], rows[order]
    is_first = np.ones(len(numbers) + 1, bool)
    is_first[1:-1] = (numbers[1:] != numbers[:-1]) | (rows[1:] != rows[:-1])
    firsts = np.flatnonzero(is_first)
    counts = np.bincount(numbers[firsts[:-1]], minlength=terms).astype(np.uint32)
    return counts, rows[firsts[:-1]], np.diff(firsts).astype(np.uint32)
