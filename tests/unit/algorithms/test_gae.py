"""GAE against numbers worked by hand, and against sums of temporal differences written out.

_N trajectories, _T sampled tokens.
"""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.gae import gae

# Three rows, the middle one without sampled tokens.
LENGTHS = [3, 0, 2]
REWARDS_T = torch.tensor([0.0, -0.1, 1.0, 0.0, 0.5], dtype=torch.float64)
VALUES_T = torch.tensor([0.4, 0.6, 0.8, 0.3, 0.1], dtype=torch.float64)


def naive(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The sum over l of (gamma lam)^l times the temporal difference l tokens later, for one row."""
    following = [*values, 0.0][1:]
    errors = [reward + gamma * after - value for reward, after, value in zip(rewards, following, values, strict=True)]
    return [
        sum((gamma * lam) ** (late - early) * errors[late] for late in range(early, len(errors)))
        for early in range(len(errors))
    ]


def test_by_hand() -> None:
    # gamma 0.5, lam 0.5, decay 0.25
    # first row: errors 0 + 0.3 - 0.4 = -0.1; -0.1 + 0.4 - 0.6 = -0.3; 1 - 0.8 = 0.2
    #   0.2; -0.3 + 0.05 = -0.25; -0.1 - 0.0625 = -0.1625
    # last row: 0 + 0.05 - 0.3 = -0.25; 0.5 - 0.1 = 0.4;  0.4; -0.25 + 0.1 = -0.15
    advantages_T, returns_T = gae(REWARDS_T, VALUES_T, torch.tensor(LENGTHS), 0.5, 0.5)
    assert_close(advantages_T, torch.tensor([-0.1625, -0.25, 0.2, -0.15, 0.4], dtype=torch.float64))
    assert_close(returns_T, torch.tensor([0.2375, 0.35, 1.0, 0.15, 0.5], dtype=torch.float64))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.99, 1.0), (0.9, 0.8), (0.9, 0.0), (0.0, 1.0)])
def test_the_sum_written_out(gamma: float, lam: float) -> None:
    lengths = [4, 1, 0, 7, 2, 7]
    dice = torch.Generator().manual_seed(0)
    rewards_T = torch.randn(sum(lengths), generator=dice, dtype=torch.float64)
    values_T = torch.randn(sum(lengths), generator=dice, dtype=torch.float64)
    expected = [
        advantage
        for rewards, values in zip(rewards_T.split(lengths), values_T.split(lengths), strict=True)
        for advantage in naive(rewards.tolist(), values.tolist(), gamma, lam)
    ]
    advantages_T, returns_T = gae(rewards_T, values_T, torch.tensor(lengths), gamma, lam)
    assert_close(advantages_T, torch.tensor(expected, dtype=torch.float64))
    assert_close(returns_T, advantages_T + values_T)


def test_the_value_after_an_observation_is_the_bootstrap_before_it() -> None:
    # Tokens 0, 1 are sampled, then comes retrieved text, then 2: with lam 0, token 1 leads to the value of token 2.
    values_T = torch.tensor([0.1, 0.2, 0.7])
    advantages_T, _ = gae(torch.tensor([0.0, 0.0, 1.0]), values_T, torch.tensor([3]), 1.0, 0.0)
    assert_close(advantages_T, torch.tensor([0.1, 0.5, 0.3]))


def test_nothing_of_it_has_a_gradient() -> None:
    advantages_T, returns_T = gae(REWARDS_T, VALUES_T.clone().requires_grad_(), torch.tensor(LENGTHS), 1.0, 1.0)
    assert not advantages_T.requires_grad
    assert not returns_T.requires_grad


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_no_tokens(lengths: list[int]) -> None:
    made = gae(torch.zeros(0), torch.zeros(0), torch.tensor(lengths, dtype=torch.long), 1.0, 1.0)
    assert [part_T.tolist() for part_T in made] == [[], []]


@pytest.mark.parametrize("lengths", [[3, 1], [3, 3], [6, -1], []])
def test_lengths_that_are_not_of_these_tokens_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"lengths \[.*\] must be counts that add up to 5 tokens"):
        gae(REWARDS_T, VALUES_T, torch.tensor(lengths, dtype=torch.long), 1.0, 1.0)


@pytest.mark.parametrize("values_T", [torch.zeros(4), torch.zeros(1), torch.zeros(1, 5), torch.tensor(0.0)])
def test_values_that_are_not_of_these_tokens_are_refused(values_T: Tensor) -> None:
    with pytest.raises(ValueError, match=r"rewards \(5,\) and values .*"):
        gae(REWARDS_T, values_T, torch.tensor(LENGTHS), 1.0, 1.0)
