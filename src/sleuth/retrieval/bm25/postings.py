"""Postings of a block of passages: which terms, in which rows, how often; as arrays, and as a file of its own."""

import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import open_array
from sleuth.errors import InputError
from sleuth.retrieval.bm25.analyzer import Terms
from sleuth.runs.atomic import atomic_write

DROPPED = -1
REMEMBERED = 1 << 19
DIGIT = 1 << 16

Numbers = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Postings:
    """The terms of a block in order of first appearance; the postings of one stand together, by row."""

    terms: list[str]
    counts: Numbers  # rows that hold each term
    rows: Numbers  # counted from the first of the block
    times: Numbers  # how often the row holds the term
    lengths: Numbers  # words of each row

    def write(self, path: Path) -> None:
        """Writes one array that holds all parts; the file appears when it is whole."""
        text = "\n".join(self.terms).encode()
        letters = np.frombuffer(text.ljust(-(-len(text) // 4) * 4, b"\n"), np.uint32)
        parts = (self.lengths, self.counts, self.rows, self.times, letters)
        body = np.concatenate(parts)
        header = np.array([zlib.crc32(body.data), *map(len, parts)], np.uint32)
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.save(file, np.concatenate([header, body]))

    @classmethod
    def read(cls, path: Path, *, verify: bool = False) -> "Postings":
        """The block in a file, its numbers read where they are touched; a damaged one is an InputError."""
        stored = open_array(path)
        header, body = stored[:6], stored[6:]
        if len(header) < 6 or len(body) != header[1:].sum() or (verify and zlib.crc32(body.data) != header[0]):
            raise InputError(f"the block {path} is damaged; remove it and build the index again")
        lengths, counts, rows, times, letters, _ = np.split(body, np.cumsum(header[1:].astype(np.int64)))
        terms = letters.tobytes().rstrip(b"\n").decode().split("\n") if len(letters) else []
        return cls(terms, counts, rows, times, lengths)


class Numbering(dict[str, int]):
    """Runs of letters to numbers of their terms; it is kept from block to block, for the same words come again."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self._numbers: dict[str, int] = {}
        self._terms = terms

    def __missing__(self, run: str) -> int:
        term = self._terms.term(run)
        number = DROPPED if term is None else self._numbers.setdefault(term, len(self._numbers))
        self[run] = number
        return number

    def numbered(self, texts: Iterable[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The numbers of all runs of some texts, one after the other, and how many each text has."""
        flat, ends = array("i"), array("q", [0])
        for text in texts:
            flat.extend(map(self.__getitem__, self._terms.runs(text)))
            ends.append(len(flat))
        return np.array(flat, np.int32), np.diff(ends)

    def terms(self) -> list[str]:
        """The terms by number."""
        return list(self._numbers)

    def clear(self) -> None:
        super().clear()
        self._numbers.clear()


def invert(texts: Iterable[str], numbering: Numbering) -> Postings:
    """The postings of some texts, a row each."""
    if len(numbering) > REMEMBERED:
        numbering.clear()
    numbers, counts = numbering.numbered(texts)
    kept = numbers != DROPPED
    rows = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)[kept]
    numbers, held = _by_appearance(numbers[kept])
    terms = numbering.terms()
    lengths = np.bincount(rows, minlength=len(counts)).astype(np.uint32)
    return Postings([terms[number] for number in held.tolist()], *_counted(numbers, rows, len(held)), lengths)


def _by_appearance(numbers: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """Numbers made small, 0 for the first, 1 for the next that is another; and which number each stands for."""
    first = np.full(numbers.max(initial=-1) + 1, len(numbers))
    # Written from the last to the first, so that the first is what stays.
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    held = np.flatnonzero(first < len(numbers))
    held = held[np.argsort(first[held])]
    small = np.empty(len(first), np.int32)
    small[held] = np.arange(len(held), dtype=np.int32)
    return small[numbers], held


def _counted(numbers: NDArray[np.int32], rows: Numbers, terms: int) -> tuple[Numbers, Numbers, Numbers]:
    """Rows a term, then rows and times of the distinct pairs of term and row, ordered by both; `rows` ascend."""
    order = _by_number(numbers)
    numbers, rows = numbers[order], rows[order]
    new = np.ones(len(numbers) + 1, bool)
    new[1:-1] = (numbers[1:] != numbers[:-1]) | (rows[1:] != rows[:-1])
    firsts = np.flatnonzero(new)
    counts = np.bincount(numbers[firsts[:-1]], minlength=terms).astype(np.uint32)
    return counts, rows[firsts[:-1]], np.diff(firsts).astype(np.uint32)


def _by_number(numbers: NDArray[np.int32]) -> NDArray[np.intp]:
    """A stable order; numpy sorts 16 bits by their digits, many times faster than more of them."""
    order = np.argsort((numbers % DIGIT).astype(np.uint16), kind="stable")
    if len(numbers) and numbers.max() >= DIGIT:
        order = order[np.argsort((numbers[order] // DIGIT).astype(np.uint16), kind="stable")]
    return order
