"""How much better a trajectory was than what it is compared with.

_N trajectories, _G groups. `groups_N` holds the group key of each trajectory, any integers in any order.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Advantage = Callable[[Tensor, Tensor], Tensor]

EPSILON = 1e-6


def grpo(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Deviation from the group's mean in units of its standard deviation (arXiv 2402.03300), unbiased as in verl."""
    index_N, count_G = _members(rewards_N, groups_N)
    deviation_N = _deviation(rewards_N, index_N, count_G)
    variance_G = _sums(deviation_N.square(), index_N, count_G) / (count_G - 1)
    return deviation_N / (variance_G.sqrt()[index_N] + EPSILON)


def dr_grpo(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Deviation from the group's mean, so that hard and easy questions are not blown up (arXiv 2503.20783)."""
    return _deviation(rewards_N, *_members(rewards_N, groups_N))


def rloo(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Deviation from the mean of the other members of the group (arXiv 2402.14740)."""
    index_N, count_G = _members(rewards_N, groups_N)
    # r - (S - r) / (n - 1) = (r - S / n) * n / (n - 1)
    return _deviation(rewards_N, index_N, count_G) * (count_G / (count_G - 1))[index_N]


def reinforce(rewards_N: Tensor, _groups_N: Tensor) -> Tensor:
    """Deviation from the mean of the whole batch."""
    return rewards_N - rewards_N.mean()


def _members(rewards_N: Tensor, groups_N: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each trajectory's group among the groups, and the size of each group."""
    if rewards_N.shape != groups_N.shape or rewards_N.dim() != 1:
        raise ValueError(
            f"rewards {tuple(rewards_N.shape)} and groups {tuple(groups_N.shape)} must be vectors of one length"
        )
    keys_G, index_N, count_G = torch.unique(groups_N, return_inverse=True, return_counts=True)
    if (count_G < 2).any():
        alone = keys_G[count_G < 2].tolist()
        raise ValueError(f"groups {alone} have one member and nothing to compare it with; drop them first")
    return index_N, count_G


def _deviation(rewards_N: Tensor, index_N: Tensor, count_G: Tensor) -> Tensor:
    # Counted from the group's lowest reward, equal rewards are exact zeros whatever the mean rounds to.
    lowest_G = rewards_N.new_zeros(count_G.shape).scatter_reduce(0, index_N, rewards_N, "amin", include_self=False)
    above_N = rewards_N - lowest_G[index_N]
    return above_N - (_sums(above_N, index_N, count_G) / count_G)[index_N]


def _sums(values_N: Tensor, index_N: Tensor, count_G: Tensor) -> Tensor:
    return values_N.new_zeros(count_G.shape).index_add(0, index_N, values_N)


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo, "reinforce": reinforce}
