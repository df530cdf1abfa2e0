"""Rankers that combine or refine other rankers: hybrid search and reranking."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.passages import PassageStore
from sleuth.retrieval.retriever import Ranker, Ranking

RRF_CONSTANT = 60  # Cormack, Clarke and Buettcher, SIGIR 2009
RRF_DEPTH = 100


class Hybrid:
    """Reciprocal rank fusion: a row at position p of a ranking scores 1 / (constant + p), summed over the rankings.

    Each ranking contributes its first `depth` rows, or `k` if larger. Up to that depth, a smaller `k` is a prefix of a
    larger one. `id_order` breaks ties.
    """

    def __init__(
        self,
        rankers: Sequence[Ranker],
        id_order: NDArray[np.uint32],
        constant: int = RRF_CONSTANT,
        depth: int = RRF_DEPTH,
    ) -> None:
        self._rankers, self._id_order = tuple(rankers), id_order
        self._constant, self._depth = constant, depth

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        depth = max(self._depth, k)
        rankings = [ranker.rank(queries, depth) for ranker in self._rankers]
        return [self._fuse(of_query)[:k] for of_query in zip(*rankings, strict=True)]

    def _fuse(self, rankings: Sequence[Ranking]) -> Ranking:
        parts: defaultdict[int, list[float]] = defaultdict(list)
        for ranking in rankings:
            for position, (row, _) in enumerate(ranking, 1):
                parts[row].append(1.0 / (self._constant + position))
        # fsum rounds once, so the same positions in different rankings give equal sums.
        fused = [(row, math.fsum(terms)) for row, terms in parts.items()]
        return sorted(fused, key=lambda item: (-item[1], self._id_order[item[0]]))


class Scorer(Protocol):
    """Scores how well passages answer queries."""

    def score(self, queries: Sequence[str], passages: Sequence[str]) -> NDArray[np.float32]:
        """Return one number per pair; higher is better, independent of the batch."""
        ...


class Reranker:
    """Rescores the best `depth` rows of another ranker (or `k` if larger) with a cross-encoder."""

    def __init__(self, ranker: Ranker, store: PassageStore, scorer: Scorer, depth: int) -> None:
        self._ranker, self._store, self._scorer, self._depth = ranker, store, scorer, depth

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        candidates = [[row for row, _ in ranking] for ranking in self._ranker.rank(queries, max(k, self._depth))]
        paired = [query for query, rows in zip(queries, candidates, strict=True) for _ in rows]
        passages = [self._store[row].contents for rows in candidates for row in rows]
        scores = iter(self._scorer.score(paired, passages).tolist() if paired else [])
        rescored = [[(row, next(scores)) for row in rows] for rows in candidates]
        return [sorted(rows, key=lambda pair: (-pair[1], self._store.ranks[pair[0]]))[:k] for rows in rescored]
