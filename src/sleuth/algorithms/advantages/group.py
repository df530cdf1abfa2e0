"""What the advantages that compare within a group share.

_N trajectories, _G groups.
"""

from dataclasses import dataclass

from torch import Tensor

from sleuth.algorithms import rows
from sleuth.algorithms.shapes import vectors


@dataclass(frozen=True, slots=True)
class Groups:
    """The place of each trajectory's group among the groups, and the size of each group."""

    index_N: Tensor
    count_G: Tensor

    def deviation(self, rewards_N: Tensor) -> Tensor:
        """The rewards less the mean of their group; exact zeros where those of a group are equal."""
        # Counted from the group's lowest reward, equal rewards are exact zeros whatever the mean rounds to.
        lowest_G = rewards_N.new_zeros(self.count_G.shape).scatter_reduce(
            0, self.index_N, rewards_N, "amin", include_self=False
        )
        above_N = rewards_N - lowest_G[self.index_N]
        return above_N - rows.means(above_N, self.index_N, self.count_G)[self.index_N]


def members(rewards_N: Tensor, groups_N: Tensor) -> Groups:
    """The groups of the rewards, each of two members or more."""
    vectors(rewards=rewards_N, groups=groups_N)
    key_G, index_N, count_G = rows.numbered(groups_N)
    if (count_G < 2).any():
        alone = key_G[count_G < 2].tolist()
        raise ValueError(f"groups {alone} have one member and nothing to compare it with; drop them first")
    return Groups(index_N, count_G)
