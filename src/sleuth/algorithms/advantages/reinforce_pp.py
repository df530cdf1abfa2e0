"""REINFORCE++ (arXiv 2501.03262): the advantage is normalised over the whole batch, not within a group.

_N trajectories. Its authors' code (OpenRLHF) and verl take mean and standard deviation over tokens, so that a long
trajectory moves them more. Here each trajectory counts once: rewards are one a trajectory, and the advantage of one
does not depend on how long another is. The KL that the paper charges in the reward is charged before.
"""

from torch import Tensor

from sleuth.algorithms.shapes import vectors
from sleuth.algorithms.whiten import whitened


def reinforce_pp(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Deviation from the mean of the whole batch in units of its standard deviation, whatever the groups."""
    vectors(rewards=rewards_N, groups=groups_N)
    return whitened(rewards_N)
