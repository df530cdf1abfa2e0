"""Tree-GRPO (arXiv 2509.21240): advantages of the leaves of rollout trees, and of the tokens that leaves share.

Suffixes: N trajectories (leaves), C branches of one trajectory, S trained tokens of one trajectory.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sleuth.algorithms.advantage import divisor, grpo
from sleuth.algorithms.segments import index_rows, require_vectors


def tree_grpo(rewards_N: Tensor, groups_N: Tensor, trees_N: Tensor) -> Tensor:
    """Sum of the GRPO advantage among all leaves of the question and that among the leaves of the tree (section 3.3).

    The intra-tree part of a tree with a single leaf is zero. It compares leaves that share a prefix; alone it would not
    tell good trees from bad ones.
    """
    inter_N = grpo(rewards_N, groups_N)
    keys_N, several_N = _trees(rewards_N, groups_N, trees_N)
    inter_N[several_N] += grpo(rewards_N[several_N], keys_N[several_N])
    return inter_N


def tree_divisor(rewards_N: Tensor, groups_N: Tensor, trees_N: Tensor) -> Tensor:
    """Return the divisor of a reward in the sum of both parts: 1 / (1 / std(group) + 1 / std(tree))."""
    scale_N = 1.0 / divisor("grpo", rewards_N, groups_N)
    keys_N, several_N = _trees(rewards_N, groups_N, trees_N)
    scale_N[several_N] += 1.0 / divisor("grpo", rewards_N[several_N], keys_N[several_N])
    return 1.0 / scale_N


def subtree_sums(values_N: Tensor, parents: Sequence[int | None]) -> tuple[Tensor, Tensor]:
    """Return the sum of the values, and the number, of each leaf and the branches below it; parents come first."""
    require_vectors(values=values_N)
    sums_N, counts_N = values_N.clone(), torch.ones_like(values_N)
    for index, parent in reversed(list(enumerate(parents))):
        if parent is None:
            continue
        if not parent < index:
            raise ValueError(f"trajectory {index} branches from {parent}; a parent comes before its branches")
        sums_N[parent] += sums_N[index]
        counts_N[parent] += counts_N[index]
    return sums_N, counts_N


def leaf_means(value: Tensor, sums_C: Tensor, counts_C: Tensor, shared_C: Tensor, position_S: Tensor) -> Tensor:
    """Return the mean value of the leaves that contain each token of a trajectory of this value.

    A branch, with `sums_C` and `counts_C` of its subtree, contains the tokens before `shared_C`.
    """
    below_CS = (position_S < shared_C[:, None]).to(sums_C.dtype)
    return (value + sums_C @ below_CS) / (1.0 + counts_C @ below_CS)


def _trees(rewards_N: Tensor, groups_N: Tensor, trees_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return a key for each tree of each group, and whether the tree has two leaves or more."""
    require_vectors(rewards=rewards_N, groups=groups_N, trees=trees_N)
    pairs_N2 = torch.stack([groups_N, trees_N.to(groups_N)], dim=1)
    _, keys_N = torch.unique(pairs_N2, dim=0, return_inverse=True)
    _, index_N, count_G = index_rows(keys_N)
    return keys_N, (count_G >= 2)[index_N]
