"""REINFORCE with the mean of the batch as its baseline (Williams 1992, doi 10.1007/BF00992696).

_N trajectories.
"""

from torch import Tensor

from sleuth.algorithms.shapes import vectors
from sleuth.algorithms.whiten import centred


def reinforce(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Deviation from the mean of the whole batch, whatever the groups."""
    vectors(rewards=rewards_N, groups=groups_N)
    return centred(rewards_N)
