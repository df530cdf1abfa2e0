"""Inverted index: per-block postings used by the build, postings with BM25 scores, and the vocabulary."""

import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import open_array, sample_positions
from sleuth.errors import InputError
from sleuth.retrieval.bm25.analyzer import Analyzer, Version, stemmer_of
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import read_json

# File names as in bm25s, which can also open the folder.
SCORES = "data.csc.index.npy"
ROWS = "indices.csc.index.npy"
STARTS = "indptr.csc.index.npy"
TERMS = "vocab.index.json"
PARAMETERS = "params.index.json"
# Files that bm25s does not have. The vocabulary is a hash table with chaining: the terms of a bucket are adjacent in
# the text array.
MAXIMA = "maxima.npy"
STEMMERS = "stemmers.json"
BUCKETS = "terms.buckets.npy"
BORDERS = "terms.borders.npy"
TEXT = "terms.text.npy"
NUMBERS = "terms.numbers.npy"

PROBES = 1000
# Scores are multiples of this, so sums below 1024 are exact in float64 in any order. It is finer than float32 for
# every score above a millionth.
GRAIN = 2.0**-43
NOT_INDEXED = -1
CACHE_SIZE = 1 << 19
RADIX = 1 << 16
HEADER = 7  # checksum, and the lengths of the fields of a block

Row = tuple[str, str]  # contents and language

Numbers = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class InvertedIndex:
    """Memory-mapped arrays; the postings of term `t` are `starts[t]` to `starts[t + 1]`, sorted by row."""

    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    scores: NDArray[np.float32]
    maxima: NDArray[np.float32]  # highest score per term

    @classmethod
    def open(cls, folder: Path, passages: int) -> "InvertedIndex":
        """Open the arrays of a folder; raise InputError if they are damaged or belong to another corpus."""
        try:
            indexed = read_json(folder / PARAMETERS).get("num_docs")
        except InputError as error:
            raise InputError(f"{folder / PARAMETERS} is missing or damaged; build the index again") from error
        if indexed != passages:
            raise InputError(f"{folder} indexes {indexed} passages, the corpus has {passages}; build the index again")

        def require(valid: bool, name: str) -> None:
            if not valid:
                raise InputError(f"the array {folder / name} contains invalid values; build the index again")

        starts = open_array(folder / STARTS)
        ascending = len(starts) and starts[0] == 0 and not (np.diff(starts) < 0).any()
        require(starts.dtype.kind in "iu" and bool(ascending), STARTS)
        rows, scores = (open_array(folder / name, int(starts[-1])) for name in (ROWS, SCORES))
        maxima = open_array(folder / MAXIMA, len(starts) - 1)
        sample = rows[sample_positions(len(rows), PROBES)]
        require(rows.dtype.kind in "iu" and bool(((sample >= 0) & (sample < passages)).all()), ROWS)
        for name, values in {SCORES: scores, MAXIMA: maxima}.items():
            sample = values[sample_positions(len(values), PROBES)]
            require(values.dtype.kind == "f" and bool((np.isfinite(sample) & (sample > 0)).all()), name)
        return cls(starts, rows, scores, maxima)


@dataclass(frozen=True, slots=True)
class Postings:
    """The terms of a block in order of first occurrence; the postings of a term are contiguous and sorted by row."""

    terms: list[str]
    counts: Numbers  # rows per term
    rows: Numbers  # relative to the first row of the block
    frequencies: Numbers  # occurrences of the term in the row
    lengths: Numbers  # words per row
    stemmers: list[str]  # that the rows were analyzed with

    def write(self, path: Path) -> None:
        """Write all fields as one array, atomically."""
        texts = (_as_numbers(self.terms), _as_numbers(self.stemmers))
        parts = (self.lengths, self.counts, self.rows, self.frequencies, *texts)
        body = np.concatenate(parts)
        header = np.array([zlib.crc32(body.data), *map(len, parts)], np.uint32)
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.save(file, np.concatenate([header, body]))

    @classmethod
    def read(cls, path: Path, *, verify: bool = False) -> "Postings":
        """Memory-map a block; raise InputError if the file is damaged."""
        stored = open_array(path)
        header, body = stored[:HEADER], stored[HEADER:]
        if len(header) < HEADER or len(body) != header[1:].sum() or (verify and zlib.crc32(body.data) != header[0]):
            raise InputError(f"the block {path} is damaged; remove it and build the index again")
        lengths, counts, rows, frequencies, *texts, _ = np.split(body, np.cumsum(header[1:].astype(np.int64)))
        terms, stemmers = (text.tobytes().rstrip(b"\n").decode().split("\n") if len(text) else [] for text in texts)
        return cls(terms, counts, rows, frequencies, lengths, stemmers)


def _as_numbers(words: Sequence[str]) -> Numbers:
    text = "\n".join(words).encode()
    return np.frombuffer(text.ljust(-(-len(text) // 4) * 4, b"\n"), np.uint32)


class TermNumbers:
    """Numbers of terms in order of first occurrence, shared by all blocks; tokens are cached by stemmer."""

    def __init__(self, stemmer: str, version: Version = 1) -> None:
        self.numbers: dict[str, int] = {}
        self._stemmer, self._version = stemmer, version
        self._caches: dict[str, _TokenCache] = {}

    def __len__(self) -> int:
        return sum(map(len, self._caches.values()))

    def encode(self, rows: Iterable[Row]) -> tuple[NDArray[np.int32], NDArray[np.int64], list[str]]:
        """Return the term numbers of all tokens of the rows, concatenated, the tokens per row, and the stemmers."""
        flat, ends = array("i"), array("q", [0])
        stemmers: dict[str, None] = {}
        for contents, language in rows:
            stemmer = stemmer_of(self._stemmer, language)
            stemmers[stemmer] = None
            cache = self._caches.get(stemmer) or self._cache(stemmer)
            tokens = cache.analyzer.tokens(contents)
            flat.extend(map(cache.__getitem__, tokens))
            if cache.extra:  # terms of words with diacritics
                flat.extend(chain.from_iterable(map(cache.extra.get, tokens, repeat(()))))
            ends.append(len(flat))
        return np.array(flat, np.int32), np.diff(ends), list(stemmers)

    def clear(self) -> None:
        self._caches.clear()
        self.numbers.clear()

    def _cache(self, stemmer: str) -> "_TokenCache":
        return self._caches.setdefault(stemmer, _TokenCache(Analyzer(stemmer, self._version), self.numbers))


class _TokenCache(dict[str, int]):
    """Term numbers by token; `extra` has the other numbers of a token that is indexed under several terms."""

    def __init__(self, analyzer: Analyzer, numbers: dict[str, int]) -> None:
        super().__init__()
        self.analyzer, self.extra = analyzer, dict[str, tuple[int, ...]]()
        self._numbers = numbers

    def __missing__(self, token: str) -> int:
        first, *others = (self._number(variant) for variant in self.analyzer.variants(token))
        if others:
            self.extra[token] = tuple(others)
        self[token] = first
        return first

    def _number(self, token: str) -> int:
        term = self.analyzer.term(token)
        return NOT_INDEXED if term is None else self._numbers.setdefault(term, len(self._numbers))


def invert(rows: Iterable[Row], term_numbers: TermNumbers) -> Postings:
    """Compute the postings of rows, given as contents and language."""
    if len(term_numbers) > CACHE_SIZE:
        term_numbers.clear()
    numbers, counts, stemmers = term_numbers.encode(rows)
    indexed = numbers != NOT_INDEXED
    positions = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)[indexed]
    numbers = numbers[indexed]
    # Renumber by first occurrence, from 0. Assigned from last to first, so the first occurrence remains.
    first = np.full(numbers.max(initial=-1) + 1, len(numbers))
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    used = np.flatnonzero(first < len(numbers))
    used = used[np.argsort(first[used])]
    renumbered = np.empty(len(first), np.int32)
    renumbered[used] = np.arange(len(used), dtype=np.int32)
    terms = list(term_numbers.numbers)
    lengths = np.bincount(positions, minlength=len(counts)).astype(np.uint32)
    postings = _count(renumbered[numbers], positions, len(used))
    return Postings([terms[number] for number in used.tolist()], *postings, lengths, stemmers)


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


class Vocabulary:
    """Term numbers, looked up in a memory-mapped hash table."""

    def __init__(self, folder: Path, size: int) -> None:
        borders = open_array(folder / BORDERS, size + 1)
        self._text = open_array(folder / TEXT, int(borders[-1])).data
        self._borders = borders.data
        self._numbers = open_array(folder / NUMBERS, size).data
        self._buckets = open_array(folder / BUCKETS, _bucket_count(size) + 1).data
        if self._buckets[-1] != size:
            raise InputError(f"the table {folder / BUCKETS} does not have {size} terms; build the index again")

    def number(self, term: str) -> int | None:
        """Return the number of a term, or None if the corpus does not contain the term."""
        sought = term.encode()
        bucket = zlib.crc32(sought) & (len(self._buckets) - 2)
        for entry in range(self._buckets[bucket], self._buckets[bucket + 1]):
            if self._text[self._borders[entry] : self._borders[entry + 1]] == sought:
                return int(self._numbers[entry])
        return None


def write_vocabulary(terms: Sequence[str], folder: Path) -> None:
    """Write the hash table of the terms; the number of a term is its position."""
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
    """Return the smallest power of two that is at least `terms`."""
    return 1 << max(terms - 1, 1).bit_length()
