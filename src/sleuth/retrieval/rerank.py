"""Reranking: the best rows of another ranker, ordered anew by a cross-encoder that reads query and passage together."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.passages import PassageStore
from sleuth.retrieval.base import Ranked, Ranker


class Scorer(Protocol):
    """Says how well passages answer queries."""

    def score(self, queries: Sequence[str], passages: Sequence[str]) -> NDArray[np.float32]:
        """One number a pair, higher is better, the same alone and among others."""
        ...


class Reranked:
    """A ranker that shows the `depth` best rows of another, or `k` where that is more, to a scorer."""

    def __init__(self, ranker: Ranker, store: PassageStore, scorer: Scorer, depth: int) -> None:
        self._ranker = ranker
        self._store = store
        self._scorer = scorer
        self._depth = depth

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """See Ranker; the scores are the scorer's."""
        found = [[row for row, _ in ranked] for ranked in self._ranker.rank(queries, max(k, self._depth))]
        asked = [query for query, rows in zip(queries, found, strict=True) for _ in rows]
        passages = [self._store[row].contents for rows in found for row in rows]
        scores = iter(self._scorer.score(asked, passages).tolist() if asked else [])
        return [self._ordered([(row, next(scores)) for row in rows])[:k] for rows in found]

    def _ordered(self, scored: Ranked) -> Ranked:
        return sorted(scored, key=lambda pair: (-pair[1], self._store.ranks[pair[0]]))
