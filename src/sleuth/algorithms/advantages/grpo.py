"""GRPO's advantage (arXiv 2402.03300, section 4.1.2).

_N trajectories, _G groups.
"""

from torch import Tensor

from sleuth.algorithms import rows
from sleuth.algorithms.advantages.group import members
from sleuth.algorithms.whiten import EPSILON


def grpo(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Deviation from the group's mean in units of its standard deviation, unbiased as in verl."""
    groups = members(rewards_N, groups_N)
    deviation_N = groups.deviation(rewards_N)
    variance_G = rows.sums(deviation_N.square(), groups.index_N, groups.count_G) / (groups.count_G - 1)
    return deviation_N / (variance_G.sqrt()[groups.index_N] + EPSILON)
