"""GSPO against its sequence form written trajectory by trajectory, value and gradient.

_T sampled tokens, _N trajectories.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.loss import Bounds, Sampled, gspo

BOUNDS = Bounds(0.1, 0.15, None, 0.4)
LENGTHS = [1, 4, 2, 7, 3, 5]


def tokens(seed: int, lengths: list[int], spread: float = 0.5) -> Sampled:
    dice = torch.Generator().manual_seed(seed)
    count = sum(lengths)
    old_T = -torch.rand(count, generator=dice, dtype=torch.float64)
    logprob_T = old_T + spread * torch.randn(count, generator=dice, dtype=torch.float64)
    row_T = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    advantage_N = torch.randn(len(lengths), generator=dice, dtype=torch.float64)
    return Sampled(logprob_T.requires_grad_(), old_T, advantage_N[row_T], row_T)


def sequence_form(given: Sampled, bounds: Bounds) -> Tensor:
    """The mean over trajectories of min(s A, clip(s) A), negated, s the geometric mean of a trajectory's ratios."""
    losses = []
    for row in sorted(set(given.row_T.tolist())):
        mine_T = given.row_T == row
        advantage = given.advantage_T[mine_T][0].item()
        ratio = (given.logprob_T[mine_T] - given.old_T[mine_T]).mean().exp()
        held = min(max(ratio.item(), 1 - bounds.low), 1 + bounds.high)
        objective = (
            ratio * advantage if ratio.item() * advantage <= held * advantage else torch.tensor(held * advantage)
        )
        losses.append(-objective * (bounds.negative if advantage < 0 else 1.0))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_are_those_of_the_sequence_form(seed: int) -> None:
    given = tokens(seed, LENGTHS)
    weight_T = 1.0 / (len(LENGTHS) * torch.tensor(LENGTHS).double())[given.row_T]
    value = (weight_T * gspo(given, BOUNDS).value_T).sum()
    expected = sequence_form(given, BOUNDS)
    assert_close(value, expected)
    (gradient_T,) = torch.autograd.grad(value, given.logprob_T)
    (expected_T,) = torch.autograd.grad(expected, given.logprob_T)
    assert_close(gradient_T, expected_T)


def test_by_hand() -> None:
    # first row: ratios 2 and 8, their geometric mean 4, held at 1.15; second: 0.25 and 1, mean 0.5, held at 0.9
    # -3 * min(4, 1.15) = -3.45; 0.4 * 2 * max(0.5, 0.9) = 0.72
    given = Sampled(
        torch.tensor([2.0, 8.0, 0.25, 1.0]).log().requires_grad_(),
        torch.zeros(4),
        torch.tensor([3.0, 3.0, -2.0, -2.0]),
        torch.tensor([0, 0, 1, 1]),
    )
    loss = gspo(given, BOUNDS)
    assert_close(loss.value_T, torch.tensor([-3.45, -3.45, 0.72, 0.72]))
    assert_close(loss.metrics["ratio"], torch.tensor([4.0, 4.0, 0.5, 0.5]))
    assert loss.metrics["clipped"].tolist() == [1.0] * 4
    assert not any(metric_T.requires_grad for metric_T in loss.metrics.values())


def test_a_token_without_weight_gets_no_gradient() -> None:
    given = tokens(0, [4], spread=0.01)
    weight_T = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    (gradient_T,) = torch.autograd.grad((weight_T * gspo(given, BOUNDS).value_T).sum(), given.logprob_T)
    assert (gradient_T != 0).tolist() == [True, False, True, True]


def test_tokens_keep_advantages_of_their_own() -> None:
    # as with GAE; on policy the gradient is the policy gradient
    logprob_T = torch.tensor([-1.0, -2.0], requires_grad=True)
    given = Sampled(logprob_T, logprob_T.detach(), torch.tensor([0.5, 1.5]), torch.tensor([0, 0]))
    (gradient_T,) = torch.autograd.grad(gspo(given, BOUNDS).value_T.sum(), logprob_T)
    assert gradient_T.tolist() == [-0.5, -1.5]


def test_logprobs_far_apart_stay_finite() -> None:
    logprob_T = torch.tensor([0.0, -500.0], requires_grad=True)
    given = Sampled(logprob_T, torch.tensor([-500.0, 0.0]), torch.tensor([-1.0, 1.0]), torch.tensor([0, 1]))
    loss = gspo(given, BOUNDS)
    (gradient_T,) = torch.autograd.grad(loss.value_T.sum(), logprob_T)
    assert loss.value_T.isfinite().all()
    assert gradient_T.isfinite().all()
    assert loss.metrics["ratio"].tolist() == pytest.approx([math.exp(20), math.exp(-20)])


def test_no_tokens() -> None:
    none_T = torch.zeros(0)
    assert gspo(Sampled(none_T, none_T, none_T, none_T.long()), BOUNDS).value_T.tolist() == []


def test_a_dual_clip_is_refused() -> None:
    with pytest.raises(ValueError, match="dual = 3 has no effect in gspo"):
        gspo(tokens(0, [2]), Bounds(0.1, 0.1, 3.0))
