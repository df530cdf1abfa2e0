"""The best rows of an inverted index without adding up all of it: MaxScore (Turtle and Flood, 1995), in whole arrays.

Terms are taken from the one that can weigh most to the one that can weigh least. Once the rows of the first few hold a
score that all others together cannot reach, no further row can be among the best: the others are only looked up for
the rows that may still be. All of it is exact: sums of scores have no rounding error (see GRAIN), and equals tie.
"""

from bisect import bisect_left
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sleuth.retrieval.bm25.inverted_index import GRAIN, Inverted

EXACT = GRAIN * 2**53
# The first guess of where the k-th best score is, as a share of the highest possible, for a query of one term: it falls
# with the root of their number. A wrong guess costs time only.
GUESS = 0.65
# Postings that are added up without a thought, and rows that are looked up one by one.
CHEAP, FEW = 1500, 8
# Looking up a row costs about as much as adding up this many postings.
LOOK_UP = 6
COLUMNS = 64

Rows = NDArray[np.intp]
Sums = NDArray[np.float64]


class Weighted(NamedTuple):
    """A term of a query: the most it can add to a score, where its postings stand, and how often the query has it."""

    most: float
    start: int
    end: int
    times: int

    def said(self, times: int) -> "Weighted":
        """The term in a query that has it that often."""
        return self if times == 1 else Weighted(self.most * times, self.start, self.end, times)


class MaxScore:
    """Searches an inverted index of some rows; used by one thread at a time."""

    def __init__(self, index: Inverted, rows: int) -> None:
        self._rows = index.rows
        self._scores = index.scores
        self._one_row = index.rows.data
        self._one_score = index.scores.data
        # All zero between searches.
        self._sums = np.zeros(rows, np.float64)

    def best(self, terms: list[Weighted], k: int) -> tuple[Rows, Sums]:
        """Rows that hold a term, and their scores, in no order: the `k` best, all that tie with them, maybe more."""
        terms = sorted(terms, reverse=True)
        try:
            return self._best(terms, _remaining(terms), k)
        except BaseException:
            self._sums.fill(0)
            raise

    def _best(self, terms: list[Weighted], remaining: list[float], k: int) -> tuple[Rows, Sums]:
        rows, sums = np.empty(0, np.intp), np.empty(0, np.float64)
        # Sums that are not exact cannot be held against bounds: then all postings are added up, term after term.
        bound, goal = 0.0, remaining[0] * GUESS / len(terms) ** 0.5 if remaining[0] < EXACT else 0.0
        done = 0
        while done < len(terms) and remaining[done] >= bound:
            first, done = done, _reached(terms, remaining, done, goal)
            rows, sums = self._added(rows, sums, terms[first:done])
            bound = max(bound, self._bound(rows, sums, terms[done:], k))
            goal = bound
        return self._completed(*_at_least(rows, sums, bound - remaining[done]), terms[done:], remaining[done:], bound)

    def _added(self, rows: Rows, sums: Sums, terms: list[Weighted]) -> tuple[Rows, Sums]:
        """The rows with those of more terms, and their sums; where a row stands a second time there is a zero."""
        new = np.concatenate([self._rows[term.start : term.end] for term in terms], dtype=np.intp)
        gains = np.concatenate([self._weighted(term) for term in terms], dtype=np.float64)
        borders = list(accumulate((term.end - term.start for term in terms), initial=0))
        parts = [new[start:end] for start, end in pairwise(borders)]
        if len(rows):
            rows, sums = _at_least(rows, sums, 0.0)
            self._sums[rows] = sums
            parts.append(rows)
        np.add.at(self._sums, new, gains)
        return np.concatenate(parts), np.concatenate([self._taken(part) for part in parts])

    def _taken(self, rows: Rows) -> Sums:
        """The sums of some rows, which are zero from then on."""
        sums = self._sums[rows]
        self._sums[rows] = 0
        return sums

    def _weighted(self, term: Weighted) -> NDArray[np.float32] | Sums:
        scores = self._scores[term.start : term.end]
        return scores if term.times == 1 else scores * np.float64(term.times)

    def _bound(self, rows: Rows, sums: Sums, others: list[Weighted], k: int) -> float:
        """A score that at least `k` rows reach: the k-th of the full scores of those that look best so far."""
        bound = _kth(sums, k)
        if not others or bound == 0:
            return bound
        leading = (sums >= bound).nonzero()[0]
        if len(leading) > FEW:
            rows, sums = rows[leading], sums[leading]
            for term in others:
                sums = self._looked_up(rows, sums, term)
            return _kth(sums, k)
        return sorted(self._full(rows[leading], sums[leading], others))[-k]

    def _full(self, rows: Rows, sums: Sums, others: list[Weighted]) -> list[float]:
        """The sums of a few rows with other terms: one by one, for arrays that small are slow."""
        scores: list[float] = sums.tolist()
        for place, row in enumerate(rows.tolist()):
            for _, start, end, times in others:
                found = bisect_left(self._one_row, row, start, end)
                if found < end and self._one_row[found] == row:
                    scores[place] += times * self._one_score[found]
        return scores

    def _completed(
        self, rows: Rows, sums: Sums, terms: list[Weighted], remaining: list[float], bound: float
    ) -> tuple[Rows, Sums]:
        """The rows that may reach the bound, with the terms that were not added up."""
        for done, term in enumerate(terms):
            if len(rows) <= FEW:
                return rows, np.array(self._full(rows, sums, terms[done:]))
            many = len(rows) > 256 and len(rows) * LOOK_UP > term.end - term.start
            sums = self._spread(rows, sums, term) if many else self._looked_up(rows, sums, term)
            rows, sums = _at_least(rows, sums, bound - remaining[done + 1])
        return rows, sums

    def _looked_up(self, rows: Rows, sums: Sums, term: Weighted) -> Sums:
        """The sums with a term whose postings are searched for the rows."""
        holders = self._rows[term.start : term.end]
        places = holders.searchsorted(rows.astype(np.int32))
        # Past the last holder the last one is taken, which is another row.
        held = holders.take(places, mode="clip") == rows
        gains: Sums = self._scores[term.start : term.end].take(places, mode="clip") * (held * np.float64(term.times))
        return sums + gains

    def _spread(self, rows: Rows, sums: Sums, term: Weighted) -> Sums:
        """The sums with a term whose postings are laid out for a moment: faster for many rows."""
        holders = self._rows[term.start : term.end].astype(np.intp)
        self._sums[holders] = self._weighted(term)
        sums = sums + self._sums[rows]
        self._sums[holders] = 0
        return sums


def _remaining(terms: list[Weighted]) -> list[float]:
    """What the terms from each on can add together; the last entry is 0."""
    remaining = [0.0]
    for term in reversed(terms):
        remaining.append(remaining[-1] + term.most)
    return remaining[::-1]


def _reached(terms: list[Weighted], remaining: list[float], first: int, goal: float) -> int:
    """Up to which term, at least one more, to add up so that the others cannot reach the goal."""
    size = 0
    for done in range(first, len(terms)):
        size += terms[done].end - terms[done].start
        if done > first and remaining[done] < goal and size > CHEAP:
            return done
    return len(terms)


def _at_least(rows: Rows, sums: Sums, least: float) -> tuple[Rows, Sums]:
    """The rows whose sum is not zero and reaches the least."""
    kept = (sums >= least if least > 0 else sums > 0).nonzero()[0]
    return (rows, sums) if len(kept) == len(rows) else (rows[kept], sums[kept])


def _kth(sums: Sums, k: int) -> float:
    """The k-th highest sum or, where that is cheaper, a lower one that `k` sums reach; 0 where there are fewer."""
    if len(sums) < k:
        return 0.0
    if len(sums) > 8 * COLUMNS and 2 * k <= COLUMNS:
        sums = sums[: len(sums) - len(sums) % COLUMNS].reshape(-1, COLUMNS).max(axis=0)
    return float(np.partition(sums, len(sums) - k)[len(sums) - k])
