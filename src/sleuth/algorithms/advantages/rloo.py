"""REINFORCE with a leave-one-out baseline (arXiv 2402.14740).

_N trajectories, _G groups.
"""

from torch import Tensor

from sleuth.algorithms.advantages.group import members


def rloo(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Deviation from the mean of the other members of the group."""
    groups = members(rewards_N, groups_N)
    # r - (S - r) / (n - 1) = (r - S / n) * n / (n - 1)
    return groups.deviation(rewards_N) * (groups.count_G / (groups.count_G - 1))[groups.index_N]
