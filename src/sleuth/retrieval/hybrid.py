"""Hybrid search: several rankings of the same rows made into one, by reciprocal rank fusion."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sleuth.retrieval.base import Ranked, Ranker

CONSTANT = 60  # Cormack, Clarke and Buettcher, SIGIR 2009
DEPTH = 100


class Hybrid:
    """A ranker by places: a row at place p of a ranking gains 1 / (constant + p); `ranks` orders equal sums.

    Of each ranking the first `depth` rows count, or `k` where that is more. Up to that depth, fewer hits are the first
    of more.
    """

    def __init__(
        self,
        rankers: Sequence[Ranker],
        ranks: NDArray[np.uint32],
        constant: int = CONSTANT,
        depth: int = DEPTH,
    ) -> None:
        self._rankers, self._ranks = tuple(rankers), ranks
        self._constant, self._depth = constant, depth

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """The `k` rows of each query with the highest sums over all rankings."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        depth = max(self._depth, k)
        rankings = [ranker.rank(queries, depth) for ranker in self._rankers]
        return [self._fused(of_query)[:k] for of_query in zip(*rankings, strict=True)]

    def _fused(self, rankings: Sequence[Ranked]) -> Ranked:
        gains: defaultdict[int, list[float]] = defaultdict(list)
        for ranking in rankings:
            for place, (row, _) in enumerate(ranking, 1):
                gains[row].append(1.0 / (self._constant + place))
        # Rounded once, so that rows with the same places in another order of rankings have equal sums.
        sums = [(row, math.fsum(parts)) for row, parts in gains.items()]
        return sorted(sums, key=lambda item: (-item[1], self._ranks[item[0]]))
