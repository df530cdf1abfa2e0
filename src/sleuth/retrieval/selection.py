"""Selection: the best few of many scores, exactly."""

import numpy as np
from numpy.typing import NDArray

COLUMNS = 256


def best(scores: NDArray[np.float64], ranks: NDArray[np.uint32], k: int) -> NDArray[np.intp]:
    """Rows of the `k` highest scores above zero, best first; of equal scores the lower rank comes first."""
    bound = _bound(scores, k) if k < COLUMNS <= len(scores) else 0.0
    candidates = np.flatnonzero(scores >= bound if bound > 0 else scores > 0)
    order = np.lexsort((ranks[candidates], -scores[candidates]))
    return candidates[order[:k]]


def _bound(scores: NDArray[np.float64], k: int) -> float:
    """A score that at least `k` rows reach: the k-th of the columns' maxima, a tenth of the cost of a partition."""
    whole = len(scores) - len(scores) % COLUMNS
    maxima = scores[:whole].reshape(-1, COLUMNS).max(axis=0)
    return float(np.partition(maxima, COLUMNS - k)[COLUMNS - k])
