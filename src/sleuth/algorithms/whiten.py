"""Values moved and scaled by what the whole batch is like.

_T values of a batch: of tokens or of trajectories, each counts once.
"""

from torch import Tensor

from sleuth.algorithms.shapes import vectors

EPSILON = 1e-6


def centred(values_T: Tensor) -> Tensor:
    """The values less their mean; exact zeros where all are equal."""
    vectors(values=values_T)
    if not values_T.numel():
        return values_T
    # Counted from the lowest value, equal values are exact zeros whatever the mean rounds to.
    above_T = values_T - values_T.min()
    return above_T - above_T.mean()


def whitened(values_T: Tensor) -> Tensor:
    """The values with mean 0 and (unbiased) standard deviation 1; zeros where all are equal."""
    centred_T = centred(values_T)
    variance = centred_T.square().sum() / max(1, values_T.numel() - 1)
    return centred_T / (variance.sqrt() + EPSILON)
