"""Advantages against numbers worked by hand.

_N trajectories.
"""

import statistics

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.advantage import ADVANTAGES

# Two groups, interleaved: key 7 has 1, 0, 0, 1 and key 3 has 0.5, 0.2, 0.2.
GROUPS_N = torch.tensor([7, 3, 7, 7, 3, 7, 3])
REWARDS_N = torch.tensor([1.0, 0.5, 0.0, 0.0, 0.2, 1.0, 0.2], dtype=torch.float64)
IN_GROUPS = ["grpo", "dr_grpo", "rloo"]


def advantages(name: str) -> Tensor:
    return ADVANTAGES[name](REWARDS_N, GROUPS_N)


def close(actual_N: Tensor, expected: list[float]) -> None:
    assert_close(actual_N, torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=0.0)


def test_grpo() -> None:
    # key 7: mean 0.5, std = sqrt(4 * 0.25 / 3) = 0.577350, 0.5 / 0.577351 = 0.866024
    # key 3: mean 0.3, deviations 0.2, -0.1, -0.1, std = sqrt(0.06 / 2) = 0.173205,
    #        0.2 / 0.173206 = 1.154694, -0.1 / 0.173206 = -0.577347
    close(advantages("grpo"), [0.866024, 1.154694, -0.866024, -0.866024, -0.577347, 0.866024, -0.577347])


def test_dr_grpo() -> None:
    # the deviations above, undivided
    close(advantages("dr_grpo"), [0.5, 0.2, -0.5, -0.5, -0.1, 0.5, -0.1])


def test_rloo() -> None:
    # key 7: 1 - (0 + 0 + 1) / 3 = 0.666667, 0 - (1 + 0 + 1) / 3 = -0.666667
    # key 3: 0.5 - (0.2 + 0.2) / 2 = 0.3, 0.2 - (0.5 + 0.2) / 2 = -0.15
    close(advantages("rloo"), [0.666667, 0.3, -0.666667, -0.666667, -0.15, 0.666667, -0.15])


def test_reinforce() -> None:
    # batch mean (2 + 0.9) / 7 = 0.414286
    close(advantages("reinforce"), [0.585714, 0.085714, -0.414286, -0.414286, -0.214286, 0.585714, -0.214286])


def test_reinforce_pp() -> None:
    # squares of the deviations above: 2 * 0.343061 + 0.007347 + 2 * 0.171633 + 2 * 0.045918 = 1.128571
    # std = sqrt(1.128571 / 6) = 0.433700; 0.585714 / 0.433701 = 1.350501, 0.085714 / 0.433701 = 0.197634,
    # -0.414286 / 0.433701 = -0.955234, -0.214286 / 0.433701 = -0.494087
    expected = [1.350501, 0.197634, -0.955234, -0.955234, -0.494087, 1.350501, -0.494087]
    close(advantages("reinforce_pp"), expected)
    assert statistics.stdev(expected) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7])
def test_equal_rewards_are_exact_zeros(name: str, reward: float) -> None:
    rewards_N = torch.full((7,), reward)  # in float32 the sum of seven 0.1 divided by seven is not 0.1
    assert ADVANTAGES[name](rewards_N, torch.zeros(7, dtype=torch.long)).tolist() == [0.0] * 7


@pytest.mark.parametrize("name", IN_GROUPS)
def test_a_group_of_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"groups \[5\] have one member"):
        ADVANTAGES[name](torch.tensor([1.0, 0.0, 1.0]), torch.tensor([2, 5, 2]))


def test_the_batch_baseline_needs_no_groups() -> None:
    assert ADVANTAGES["reinforce"](torch.tensor([1.0, 0.0]), torch.tensor([2, 5])).tolist() == [0.5, -0.5]


@pytest.mark.parametrize("name", ["reinforce", "reinforce_pp"])
def test_a_batch_of_one_teaches_nothing(name: str) -> None:
    assert ADVANTAGES[name](torch.tensor([0.7]), torch.tensor([0])).tolist() == [0.0]


@pytest.mark.parametrize("name", ADVANTAGES)
def test_no_trajectories_have_no_advantages(name: str) -> None:
    assert ADVANTAGES[name](torch.zeros(0), torch.zeros(0, dtype=torch.long)).tolist() == []


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("groups_N", [torch.tensor([2, 2]), torch.tensor([[2, 2, 2]]), torch.tensor(2)])
def test_vectors_of_two_lengths_are_refused(name: str, groups_N: Tensor) -> None:
    with pytest.raises(ValueError, match=r"rewards \(3,\) and groups .*"):
        ADVANTAGES[name](torch.tensor([1.0, 0.0, 1.0]), groups_N)
