"""Advantage estimators: how much better a trajectory was than its baseline.

Suffixes: N trajectories, G groups, T values of a batch. An estimator takes the reward of each trajectory and the key of
its group (any integers in any order). GAE needs a critic and has its own module.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sleuth.algorithms.segments import index_rows, require_vectors, row_means, row_sums

Advantage = Callable[[Tensor, Tensor], Tensor]

EPSILON = 1e-6


def grpo(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """GRPO (arXiv 2402.03300, section 4.1.2): deviation from the group mean, divided by the group's std."""
    return dr_grpo(rewards_N, groups_N) / _group_divisor(rewards_N, groups_N)


def dr_grpo(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Dr. GRPO (arXiv 2503.20783): deviation from the group mean, not divided by the group's std."""
    index_N, count_G = _groups(rewards_N, groups_N)
    # Relative to the group's minimum, equal rewards give exact zeros, however their mean rounds.
    minimum_G = rewards_N.new_zeros(count_G.shape).scatter_reduce(0, index_N, rewards_N, "amin", include_self=False)
    above_N = rewards_N - minimum_G[index_N]
    return above_N - row_means(above_N, index_N, count_G)[index_N]


def rloo(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """RLOO (arXiv 2402.14740): deviation from the mean of the group's other members."""
    index_N, count_G = _groups(rewards_N, groups_N)
    # r - (S - r) / (n - 1) = (r - S / n) * n / (n - 1)
    return dr_grpo(rewards_N, groups_N) * (count_G / (count_G - 1))[index_N]


def reinforce(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """REINFORCE (Williams 1992, doi 10.1007/BF00992696) with the batch mean as baseline; groups are ignored."""
    require_vectors(rewards=rewards_N, groups=groups_N)
    return centre(rewards_N)


def reinforce_pp(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """REINFORCE++ (arXiv 2501.03262): rewards normalised over the batch; groups are ignored.

    OpenRLHF and verl take mean and std over tokens, so long trajectories weigh more. Here each trajectory counts once.
    """
    require_vectors(rewards=rewards_N, groups=groups_N)
    return whiten(rewards_N)


ADVANTAGES: dict[str, Advantage] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce": reinforce,
    "reinforce_pp": reinforce_pp,
}


def divisor(name: str, rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Return the divisor of the named estimator: 1 unless the estimator divides by a standard deviation.

    Infinite where the standard deviation is zero, so turn rewards have no effect there.
    """
    if name == "grpo":
        return _without_scale(_group_divisor(rewards_N, groups_N))
    if name == "reinforce_pp":
        return _without_scale((_variance(centre(rewards_N)).sqrt() + EPSILON).expand_as(rewards_N))
    return rewards_N.new_ones(rewards_N.shape)


def centre(values_T: Tensor) -> Tensor:
    """Subtract the mean; the result is exactly zero if all values are equal."""
    require_vectors(values=values_T)
    if not values_T.numel():
        return values_T
    above_T = values_T - values_T.min()
    return above_T - above_T.mean()


def whiten(values_T: Tensor) -> Tensor:
    """Scale to mean 0 and (unbiased) standard deviation 1; zeros if all values are equal."""
    centred_T = centre(values_T)
    return centred_T / (_variance(centred_T).sqrt() + EPSILON)


def penalise_overlong(rewards_N: Tensor, lengths_N: Tensor, limit: int, buffer: int) -> Tensor:
    """Subtract DAPO's penalty (arXiv 2503.14476, eq. 13), which grows to 1 over the `buffer` tokens before `limit`."""
    require_vectors(rewards=rewards_N, lengths=lengths_N)
    if not 0 < buffer <= limit:
        raise ValueError(f"buffer = {buffer} tokens is out of range; expected 1 to the limit of {limit}")
    return rewards_N - ((lengths_N - (limit - buffer)) / buffer).clamp(0.0, 1.0)


def _groups(rewards_N: Tensor, groups_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return the group index of each trajectory and the group sizes; raises ValueError if a group has one member."""
    require_vectors(rewards=rewards_N, groups=groups_N)
    key_G, index_N, count_G = index_rows(groups_N)
    if (count_G < 2).any():
        single = key_G[count_G < 2].tolist()
        raise ValueError(f"groups {single} have one member, which cannot be compared; drop them first")
    return index_N, count_G


def _group_divisor(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Return the standard deviation of each trajectory's group, unbiased as in verl, plus epsilon."""
    index_N, count_G = _groups(rewards_N, groups_N)
    variance_G = row_sums(dr_grpo(rewards_N, groups_N).square(), index_N, count_G) / (count_G - 1)
    return variance_G.sqrt()[index_N] + EPSILON


def _without_scale(divisor_N: Tensor) -> Tensor:
    return divisor_N.masked_fill(divisor_N <= 2 * EPSILON, torch.inf)


def _variance(centred_T: Tensor) -> Tensor:
    return centred_T.square().sum() / max(1, centred_T.numel() - 1)
