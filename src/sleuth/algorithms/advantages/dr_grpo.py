"""The advantage of Dr. GRPO (arXiv 2503.20783).

_N trajectories.
"""

from torch import Tensor

from sleuth.algorithms.advantages.group import members


def dr_grpo(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Deviation from the group's mean, undivided, so that very hard and very easy questions are not blown up."""
    return members(rewards_N, groups_N).deviation(rewards_N)
