"""BM25 search: exact top-k over the inverted index with MaxScore (Turtle and Flood, 1995), vectorised.

Terms are processed by decreasing maximum score. Once k rows have a score that the remaining terms together cannot
reach, no new row can enter the top k: the remaining terms are only looked up for the candidate rows. The result is
exact: sums of scores have no rounding error (see GRAIN), and equal scores tie.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sleuth.config.retrieval import BM25Settings
from sleuth.errors import InputError
from sleuth.retrieval.bm25.analyzer import BY_LANGUAGE, QueryAnalyzer
from sleuth.retrieval.bm25.inverted_index import GRAIN, STEMMERS, InvertedIndex, Vocabulary
from sleuth.retrieval.retriever import Ranking

CACHED_TERMS = 1 << 17
EXACT = GRAIN * 2**53
# The first guess of the k-th best score of a one-term query, as a fraction of the highest possible; it falls with the
# square root of the number of terms. A wrong guess only costs time.
GUESS = 0.65
CHEAP_POSTINGS = 1500  # always accumulated
FEW_ROWS = 8  # looked up one by one
LOOK_UP_COST = 6  # postings accumulated in the time of one look-up
COLUMNS = 64

Rows = NDArray[np.intp]
Sums = NDArray[np.float64]


class QueryTerm(NamedTuple):
    """A term of a query: its maximum contribution, the range of its postings, its frequency in the query."""

    maximum: float
    start: int
    end: int
    frequency: int


class BM25:
    """Ranker over a BM25 folder; `id_order` breaks ties by passage id."""

    def __init__(self, folder: Path, settings: BM25Settings, id_order: NDArray[np.uint32]) -> None:
        index = InvertedIndex.open(folder, len(id_order))
        self._analyzer = QueryAnalyzer(_stemmers(folder, settings.stemmer), settings.analyzer)
        self._terms = _TermCache(self._analyzer, Vocabulary(folder, len(index.maxima)), index)
        self._search = MaxScore(index, len(id_order))
        self._id_order = id_order

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """See Ranker; only rows that contain a term of the query are returned."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        rankings: list[Ranking] = []
        for query in queries:
            found = map(self._terms.__getitem__, self._analyzer.tokens(query))
            terms = [
                term if count == 1 else QueryTerm(term.maximum * count, term.start, term.end, count)
                for term, count in Counter(chain.from_iterable(found)).items()
            ]
            rows, scores = self._search.top(terms, k) if terms else (np.empty(0, np.intp), np.empty(0))
            order = np.lexsort((self._id_order[rows], -scores))[:k]
            rankings.append(list(zip(rows[order].tolist(), scores[order].tolist(), strict=True)))
        return rankings


def _stemmers(folder: Path, stemmer: str) -> list[str]:
    """Return the stemmers that the passages of a folder were analyzed with."""
    if stemmer != BY_LANGUAGE:
        return [stemmer]
    try:
        names: list[str] = json.loads((folder / STEMMERS).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / STEMMERS} is missing or damaged; build the index again") from error
    return names


class _TermCache(dict[str, tuple[QueryTerm, ...]]):
    """Cache that maps tokens to the terms of the index that have postings."""

    def __init__(self, analyzer: QueryAnalyzer, vocabulary: Vocabulary, index: InvertedIndex) -> None:
        super().__init__()
        self._analyzer, self._vocabulary, self._index = analyzer, vocabulary, index

    def __missing__(self, token: str) -> tuple[QueryTerm, ...]:
        if len(self) >= CACHED_TERMS:
            self.clear()
        terms = []
        for number in map(self._vocabulary.number, self._analyzer.terms(token)):
            if number is not None:
                start, end = self._index.starts[number : number + 2].tolist()
                terms.append(QueryTerm(float(self._index.maxima[number]), start, end, 1))
        self[token] = tuple(terms)
        return self[token]


class MaxScore:
    """Top-k search in an inverted index. Not thread-safe."""

    def __init__(self, index: InvertedIndex, rows: int) -> None:
        self._rows, self._scores = index.rows, index.scores
        self._row_view, self._score_view = index.rows.data, index.scores.data
        self._sums = np.zeros(rows, np.float64)  # scratch, all zero between searches

    def top(self, terms: list[QueryTerm], k: int) -> tuple[Rows, Sums]:
        """Return rows and scores, unsorted: at least the top `k` and everything that ties with them."""
        try:
            return self._top(sorted(terms, reverse=True), k)
        except BaseException:
            self._sums.fill(0)
            raise

    def _top(self, terms: list[QueryTerm], k: int) -> tuple[Rows, Sums]:
        # Entry i is the most that terms i and later can add; the last entry is 0.
        remaining = [*accumulate((term.maximum for term in reversed(terms)), initial=0.0)][::-1]
        rows, sums = np.empty(0, np.intp), np.empty(0, np.float64)
        # Inexact sums cannot be compared with bounds: accumulate all postings instead.
        bound, goal = 0.0, remaining[0] * GUESS / len(terms) ** 0.5 if remaining[0] < EXACT else 0.0
        done = 0
        while done < len(terms) and remaining[done] >= bound:
            first, done = done, _next_stop(terms, remaining, done, goal)
            rows, sums = self._accumulate(rows, sums, terms[first:done])
            bound = max(bound, self._lower_bound(rows, sums, terms[done:], k))
            goal = bound
        candidates = _at_least(rows, sums, bound - remaining[done])
        return self._complete(*candidates, terms[done:], remaining[done:], bound)

    def _accumulate(self, rows: Rows, sums: Sums, terms: list[QueryTerm]) -> tuple[Rows, Sums]:
        """Accumulate the postings of terms; a repeated row has its sum at its first position and zeros after."""
        new = np.concatenate([self._rows[term.start : term.end] for term in terms], dtype=np.intp)
        gains = np.concatenate([self._weighted_scores(term) for term in terms], dtype=np.float64)
        borders = list(accumulate((term.end - term.start for term in terms), initial=0))
        parts = [new[start:end] for start, end in pairwise(borders)]
        if len(rows):
            rows, sums = _at_least(rows, sums, 0.0)
            self._sums[rows] = sums
            parts.append(rows)
        np.add.at(self._sums, new, gains)
        totals = []
        for part in parts:
            totals.append(self._sums[part])
            self._sums[part] = 0
        return np.concatenate(parts), np.concatenate(totals)

    def _weighted_scores(self, term: QueryTerm) -> NDArray[np.float32] | Sums:
        scores = self._scores[term.start : term.end]
        return scores if term.frequency == 1 else scores * np.float64(term.frequency)

    def _lower_bound(self, rows: Rows, sums: Sums, others: list[QueryTerm], k: int) -> float:
        """Return a score that at least `k` rows reach: the k-th best complete score of the current leaders."""
        bound = _kth_best(sums, k)
        if not others or bound == 0:
            return bound
        leading = (sums >= bound).nonzero()[0]
        rows, sums = rows[leading], sums[leading]
        if len(leading) <= FEW_ROWS:
            return sorted(self._add_one_by_one(rows, sums, others))[-k]
        for term in others:
            sums = self._look_up(rows, sums, term)
        return _kth_best(sums, k)

    def _complete(
        self, rows: Rows, sums: Sums, terms: list[QueryTerm], remaining: list[float], bound: float
    ) -> tuple[Rows, Sums]:
        """Add the scores of the remaining terms to the candidates, dropping rows that cannot reach the bound."""
        for done, term in enumerate(terms):
            if len(rows) <= FEW_ROWS:
                return rows, np.array(self._add_one_by_one(rows, sums, terms[done:]))
            if len(rows) > 256 and len(rows) * LOOK_UP_COST > term.end - term.start:
                # Scattering the postings is faster for many rows.
                holders = self._rows[term.start : term.end].astype(np.intp)
                self._sums[holders] = self._weighted_scores(term)
                sums = sums + self._sums[rows]
                self._sums[holders] = 0
            else:
                sums = self._look_up(rows, sums, term)
            rows, sums = _at_least(rows, sums, bound - remaining[done + 1])
        return rows, sums

    def _look_up(self, rows: Rows, sums: Sums, term: QueryTerm) -> Sums:
        """Add the scores of a term, found by binary search for the rows in its postings."""
        holders = self._rows[term.start : term.end]
        found = holders.searchsorted(rows.astype(np.int32))
        # Positions past the end are clipped to the last posting, whose row does not match.
        held = holders.take(found, mode="clip") == rows
        scores = self._scores[term.start : term.end].take(found, mode="clip")
        gains: Sums = scores * (held * np.float64(term.frequency))
        return sums + gains

    def _add_one_by_one(self, rows: Rows, sums: Sums, terms: list[QueryTerm]) -> list[float]:
        """Add the scores of terms to a few rows in pure Python, which is faster than numpy for so few."""
        scores: list[float] = sums.tolist()
        for place, row in enumerate(rows.tolist()):
            for _, start, end, frequency in terms:
                found = bisect_left(self._row_view, row, start, end)
                if found < end and self._row_view[found] == row:
                    scores[place] += frequency * self._score_view[found]
        return scores


def _next_stop(terms: list[QueryTerm], remaining: list[float], first: int, goal: float) -> int:
    """Return the end of the next range of terms to accumulate; the terms after it cannot reach the goal."""
    size = 0
    for done in range(first, len(terms)):
        size += terms[done].end - terms[done].start
        if done > first and remaining[done] < goal and size > CHEAP_POSTINGS:
            return done
    return len(terms)


def _at_least(rows: Rows, sums: Sums, minimum: float) -> tuple[Rows, Sums]:
    """Return the rows whose sum is non-zero and at least `minimum`."""
    kept = (sums >= minimum if minimum > 0 else sums > 0).nonzero()[0]
    return (rows, sums) if len(kept) == len(rows) else (rows[kept], sums[kept])


def _kth_best(sums: Sums, k: int) -> float:
    """Return the k-th highest sum or a cheaper lower bound on it; 0 if there are fewer than `k` sums."""
    if len(sums) < k:
        return 0.0
    if len(sums) > 8 * COLUMNS and 2 * k <= COLUMNS:
        sums = sums[: len(sums) - len(sums) % COLUMNS].reshape(-1, COLUMNS).max(axis=0)
    return float(np.partition(sums, len(sums) - k)[len(sums) - k])
