"""The inverted index on disk: blocks merged into plain arrays, term after term, in bounded memory."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.config.retrieval import BM25Settings
from sleuth.corpus.arrays import open_array, sample_positions
from sleuth.corpus.progress import Progress
from sleuth.errors import InputError
from sleuth.retrieval.bm25 import vocabulary
from sleuth.retrieval.bm25.build import Blocks
from sleuth.retrieval.bm25.postings import Postings
from sleuth.runs.json_files import read_json

# The file names of bm25s, which can open the folder too; what comes after them is ours alone.
SCORES = "data.csc.index.npy"
ROWS = "indices.csc.index.npy"
STARTS = "indptr.csc.index.npy"
NUMBERS = "vocab.index.json"
PARAMETERS = "params.index.json"
MAXIMA = "maxima.npy"

STAGE = "merging the index"
SPAN = 1 << 24
PROBES = 1000
# Scores are multiples of this: sums of them below 1024 are exact in float64, in whatever order they are made.
# It is finer than float32 for every score above a millionth.
GRAIN = 2.0**-43


@dataclass(frozen=True, slots=True)
class Inverted:
    """The arrays: the postings of term `t` stand from `starts[t]` to `starts[t + 1]`, by row."""

    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    scores: NDArray[np.float32]
    maxima: NDArray[np.float32]  # the highest score of each term

    @classmethod
    def open(cls, folder: Path, passages: int) -> "Inverted":
        """The arrays of a folder, read from disk where they are touched; one that is not whole is an InputError."""
        indexed = _read_parameters(folder / PARAMETERS).get("num_docs")
        if indexed != passages:
            raise InputError(f"{folder} is of {indexed} passages, and the corpus has {passages}; build the index again")
        starts = open_array(folder / STARTS)
        if starts.dtype.kind not in "iu" or not len(starts) or starts[0] != 0 or (np.diff(starts) < 0).any():
            raise _damaged(folder / STARTS)
        rows, scores = (open_array(folder / name, int(starts[-1])) for name in (ROWS, SCORES))
        maxima = open_array(folder / MAXIMA, len(starts) - 1)
        probed = rows[sample_positions(len(rows), PROBES)]
        if rows.dtype.kind not in "iu" or ((probed < 0) | (probed >= passages)).any():
            raise _damaged(folder / ROWS)
        for name, array in {SCORES: scores, MAXIMA: maxima}.items():
            probed = array[sample_positions(len(array), PROBES)]
            # Every term that is stored is worth something.
            if array.dtype.kind != "f" or not (np.isfinite(probed) & (probed > 0)).all():
                raise _damaged(folder / name)
        return cls(starts, rows, scores, maxima)


def _read_parameters(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except InputError as error:
        raise InputError(f"{path} is missing or damaged; build the index again") from error


def _damaged(path: Path) -> InputError:
    return InputError(f"the array {path} holds what no index holds; build the index again")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all blocks say together."""

    terms: dict[str, int]  # in order of first appearance, so that the same corpus gives the same numbers
    numbers: list[NDArray[np.int32]]  # of the terms of each block
    holders: NDArray[np.int64]  # rows that hold each term
    norms: NDArray[np.float64]  # k1 (1 - b + b length / mean length) of each row

    @classmethod
    def of(cls, blocks: Blocks, settings: BM25Settings) -> "_Plan":
        terms: dict[str, int] = {}
        numbers, counts, lengths = [], [], []
        for postings in map(blocks.read, range(len(blocks))):
            new = [term for term in postings.terms if term not in terms]
            terms.update(zip(new, range(len(terms), len(terms) + len(new)), strict=True))
            numbers.append(np.fromiter(map(terms.__getitem__, postings.terms), np.int32, len(postings.terms)))
            counts.append(postings.counts)
            lengths.append(postings.lengths)
        holders = np.zeros(len(terms), np.int64)
        for own, count in zip(numbers, counts, strict=True):
            holders[own] += count
        return cls(terms, numbers, holders, _norms(np.concatenate([*lengths, np.empty(0, np.uint32)]), settings))


def merge(blocks: Blocks, out: Path, settings: BM25Settings, progress: Progress) -> dict[str, int]:
    """Writes the arrays of all blocks to a folder; returns how many terms and postings they hold."""
    plan = _Plan.of(blocks, settings)
    starts = np.concatenate([[0], np.cumsum(plan.holders)])
    postings = int(starts[-1])
    if postings:
        _fill(blocks, plan, starts, out, progress)
    np.save(out / STARTS, starts)
    vocabulary.write(list(plan.terms), out)
    (out / NUMBERS).write_text(json.dumps(plan.terms, ensure_ascii=False), encoding="utf-8")
    (out / PARAMETERS).write_text(json.dumps(_parameters(settings, len(plan.norms)), indent=4), encoding="utf-8")
    return {"terms": len(plan.terms), "postings": postings}


def _fill(blocks: Blocks, plan: _Plan, starts: NDArray[np.int64], out: Path, progress: Progress) -> None:
    """Writes rows, scores and maxima, a span of terms at a time; as blocks come in order, so do the rows of a term."""
    total = int(starts[-1])
    idf = np.log(1 + (len(plan.norms) - plan.holders + 0.5) / (plan.holders + 0.5))
    maxima = np.empty(len(plan.holders), np.float32)
    for first, last in _spans(starts):
        begin, end = int(starts[first]), int(starts[last])
        rows, scores = np.empty(end - begin, np.int32), np.empty(end - begin, np.float32)
        free = starts[first:last] - begin
        for number, own in enumerate(plan.numbers):
            postings = blocks.read(number)
            inside = np.flatnonzero((own >= first) & (own < last))
            place, held, times = _placed(postings, inside, free, own[inside] - first)
            held += blocks.borders[number]
            rows[place] = held
            scores[place] = _scores(times, np.repeat(idf[own[inside]], postings.counts[inside]), plan.norms[held])
        maxima[first:last] = np.maximum.reduceat(scores, starts[first:last] - begin)
        _append(out / ROWS, rows, begin, total)
        _append(out / SCORES, scores, begin, total)
        progress(STAGE, end, total)
    np.save(out / MAXIMA, maxima)


def _spans(starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Terms in spans of about as many postings as fit in memory."""
    first = 0
    while first < len(starts) - 1:
        last = int(np.searchsorted(starts, starts[first] + SPAN, side="right")) - 1
        yield first, max(last, first + 1)
        first = max(last, first + 1)


def _placed(
    postings: Postings, inside: NDArray[np.intp], free: NDArray[np.int64], numbers: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Places, rows and times of the postings of some terms of a block; the places are no longer `free` then."""
    counts = postings.counts.astype(np.int64)
    begins, sizes = (np.cumsum(counts) - counts)[inside], counts[inside]
    ahead = np.cumsum(sizes) - sizes
    steps = np.arange(int(sizes.sum()))
    place = np.repeat(free[numbers] - ahead, sizes) + steps
    source = np.repeat(begins - ahead, sizes) + steps
    free[numbers] += sizes
    return place, postings.rows[source].astype(np.int64), postings.times[source].astype(np.float64)


def _scores(times: NDArray[np.float64], idf: NDArray[np.float64], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lucene's BM25 of postings, none of them zero."""
    return np.maximum(np.rint(idf * times / (times + norms) / GRAIN), 1) * GRAIN


def _norms(lengths: NDArray[np.uint32], settings: BM25Settings) -> NDArray[np.float64]:
    mean = lengths.sum() / max(len(lengths), 1) or 1.0
    return np.asarray(settings.k1 * (1 - settings.b + settings.b * lengths / mean))


def _append(path: Path, values: NDArray[Any], place: int, total: int) -> None:
    """Writes a part of an array of `total` values; the first part makes the file."""
    if place == 0:
        with path.open("wb") as file:
            descr = np.lib.format.dtype_to_descr(values.dtype)
            np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (total,)})
    with path.open("ab") as file:
        values.tofile(file)


def _parameters(settings: BM25Settings, passages: int) -> dict[str, str | float]:
    """The index in the words of bm25s."""
    return {
        "k1": settings.k1,
        "b": settings.b,
        "delta": 0.5,
        "method": "lucene",
        "idf_method": "lucene",
        "dtype": "float32",
        "int_dtype": "int32",
        "num_docs": passages,
        "backend": "numpy",
    }
