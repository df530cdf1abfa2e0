"""Tree-GRPO against numbers worked by hand, and against a naive computation on random trees.

_N trajectories (leaves), _S trained tokens of one of them.
"""

import random
import statistics

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.tree import leaf_means, subtree_sums, tree_divisor, tree_grpo

# One question with two trees: tree 0 has 1, 0, 1 and tree 1 has 0, 0. Another question whose trees have one leaf each.
REWARDS_N = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
GROUPS_N = torch.tensor([4, 4, 4, 4, 4, 2, 2])
TREES_N = torch.tensor([0, 0, 1, 0, 1, 0, 1])


def close(actual_N: Tensor, expected: list[float]) -> None:
    assert_close(actual_N, torch.tensor(expected, dtype=actual_N.dtype), atol=1e-5, rtol=0.0)


def test_tree_grpo_adds_the_advantages_among_all_leaves_and_among_those_of_the_tree() -> None:
    # question 4: mean 0.4, std = sqrt((2 * 0.36 + 3 * 0.16) / 4) = 0.547723: 0.6 -> 1.095443, -0.4 -> -0.730295
    # its tree 0: mean 2/3, std = sqrt((2 / 9 + 4 / 9) / 2) = 0.577350: 1/3 -> 0.577349, -2/3 -> -1.154698
    # its tree 1: equal rewards, 0. Question 2: mean 0.5, std 0.707107: +-0.707106; trees of one leaf, 0
    whole, failed = 1.095443 + 0.577349, -0.730295 - 1.154698
    expected = [whole, failed, -0.730294, whole, -0.730294, 0.707106, -0.707106]
    close(tree_grpo(REWARDS_N, GROUPS_N, TREES_N), expected)


def test_divisor_is_that_of_the_sum_of_both_parts() -> None:
    rewards_N = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5], dtype=torch.float64)
    mixed = tree_divisor(rewards_N, torch.zeros(5), torch.tensor([0, 0, 1, 0, 2]))
    group = statistics.stdev(rewards_N.tolist()) + 1e-6
    tree = statistics.stdev([1.0, 0.0, 1.0]) + 1e-6
    both = 1 / (1 / group + 1 / tree)
    close(mixed, [both, both, group, both, group])


def test_shared_tokens_have_the_mean_of_the_leaves_that_contain_them() -> None:
    """Leaf 0 of value 3; leaf 1 (value 0) branches from it after 4 tokens, leaf 2 (value 6) from leaf 1 after 6."""
    sums_N, counts_N = subtree_sums(torch.tensor([3.0, 0.0, 6.0]), [None, 0, 1])
    assert sums_N.tolist() == [9.0, 6.0, 6.0]
    assert counts_N.tolist() == [3.0, 2.0, 1.0]
    trunk = leaf_means(torch.tensor(3.0), sums_N[1:2], counts_N[1:2], torch.tensor([4]), torch.tensor([2, 3, 4, 5]))
    assert trunk.tolist() == [3.0, 3.0, 3.0, 3.0]
    branch = leaf_means(torch.tensor(0.0), sums_N[2:], counts_N[2:], torch.tensor([6]), torch.tensor([4, 5, 6, 7]))
    assert branch.tolist() == [3.0, 3.0, 0.0, 0.0]


def test_a_parent_after_its_branch_is_refused() -> None:
    with pytest.raises(ValueError, match="trajectory 0 branches from 1"):
        subtree_sums(torch.zeros(2), [1, None])


def test_a_thousand_random_trees_agree_with_a_naive_computation() -> None:
    dice = random.Random(0)
    for _ in range(1000):
        count = dice.randrange(2, 9)
        parents: list[int | None] = [None if not n or dice.random() < 0.3 else dice.randrange(n) for n in range(count)]
        trees: list[int] = []
        for n, parent in enumerate(parents):
            trees.append(n if parent is None else trees[parent])
        shared = [0 if parent is None else dice.randrange(1, 12) for parent in parents]
        rewards = [dice.choice([0.0, 1.0, dice.uniform(-2, 2)]) for _ in range(count)]
        values_N = tree_grpo(torch.tensor(rewards, dtype=torch.float64), torch.zeros(count), torch.tensor(trees))
        naive = [naive_advantage(n, rewards, trees) for n in range(count)]
        assert values_N.tolist() == pytest.approx(naive, abs=1e-6)
        sums_N, counts_N = subtree_sums(values_N, parents)
        for n in range(count):
            below = [each for each in range(count) if parents[each] == n]
            call = sums_N[below], counts_N[below], torch.tensor([shared[each] for each in below], dtype=torch.int64)
            found = leaf_means(values_N[n], *call, torch.arange(12))
            expected = [naive_mean(n, place, naive, parents, shared) for place in range(12)]
            assert found.tolist() == pytest.approx(expected, abs=1e-6)


def naive_advantage(leaf: int, rewards: list[float], trees: list[int]) -> float:
    total = 0.0
    for members in (rewards, [reward for reward, tree in zip(rewards, trees, strict=True) if tree == trees[leaf]]):
        if len(members) > 1:
            total += (rewards[leaf] - statistics.fmean(members)) / (statistics.stdev(members) + 1e-6)
    return total


def naive_mean(leaf: int, place: int, values: list[float], parents: list[int | None], shared: list[int]) -> float:
    """Walk from each leaf towards the root: it contains the token if every branching on the way is after it."""
    contained = []
    for each in range(len(values)):
        at: int | None = each
        while at is not None and at != leaf:
            at = parents[at] if parents[at] != leaf or place < shared[at] else None
        if at == leaf:
            contained.append(values[each])
    return statistics.fmean(contained)
