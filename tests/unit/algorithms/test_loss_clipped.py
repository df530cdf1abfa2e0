"""The clipped loss against a scalar form of it, value and gradient.

_T sampled tokens.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.loss import Bounds, Sampled, TokenLoss, clipped

LOW, HIGH = 0.2, 0.28
# Below, inside and above the clip range, and above a dual clip, for advantages of every sign.
RATIOS = [0.5, 0.79, 0.81, 1.0, 1.27, 1.29, 2.9, 3.5]
ADVANTAGES = [1.5, -0.7, 0.0]
PAIRS = [(ratio, advantage) for ratio in RATIOS for advantage in ADVANTAGES]


def naive(logprob: Tensor, old: float, advantage: float, bounds: Bounds) -> Tensor:
    """min(ratio A, clip(ratio) A), no less than dual A where A is negative, negated, one token at a time."""
    ratio = torch.exp(logprob - old)
    low, high = 1 - bounds.low, 1 + bounds.high
    bounded = ratio if low <= ratio.item() <= high else torch.full_like(ratio, low if ratio < 1 else high)
    gain, bounded_gain = ratio * advantage, bounded * advantage
    objective = gain if gain.item() <= bounded_gain.item() else bounded_gain
    if advantage < 0 and bounds.dual is not None and objective.item() < bounds.dual * advantage:
        objective = torch.full_like(objective, bounds.dual * advantage)
    return -objective * bounds.negative if advantage < 0 else -objective


def tokens() -> Sampled:
    old_T = torch.linspace(-3.0, -0.5, len(PAIRS), dtype=torch.float64)
    logprob_T = old_T + torch.tensor([math.log(ratio) for ratio, _ in PAIRS], dtype=torch.float64)
    advantage_T = torch.tensor([advantage for _, advantage in PAIRS], dtype=torch.float64)
    return Sampled(logprob_T.requires_grad_(), old_T, advantage_T, torch.arange(len(PAIRS)) // 5)


def lost(logprob_T: Tensor, old_T: Tensor, advantages: list[float], bounds: Bounds) -> TokenLoss:
    return clipped(Sampled(logprob_T, old_T, torch.tensor(advantages), torch.zeros(len(old_T))), bounds)


@pytest.mark.parametrize("negative", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("dual", [None, 3.0, 1.1])
def test_value_and_gradient_are_those_of_the_naive_form(negative: float, dual: float | None) -> None:
    given, bounds = tokens(), Bounds(LOW, HIGH, dual, negative)
    value_T = clipped(given, bounds).value_T
    singles = [logprob.detach().requires_grad_() for logprob in given.logprob_T]
    losses = [
        naive(*each, bounds) for each in zip(singles, given.old_T.tolist(), given.advantage_T.tolist(), strict=True)
    ]
    assert_close(value_T, torch.stack(losses))
    (gradient_T,) = torch.autograd.grad(value_T.sum(), given.logprob_T)
    expected = torch.autograd.grad(torch.stack(losses).sum(), singles, allow_unused=True, materialize_grads=True)
    assert_close(gradient_T, torch.stack(expected))


def test_by_hand() -> None:
    # ratios 1.5, 1.5, 0.5, 0.5 with advantages 2, -2, 2, -2, bounds 0.8 and 1.28, negatives at half weight:
    # -2 * min(1.5, 1.28) = -2.56; 0.5 * 2 * max(1.5, 1.28) = 1.5;
    # -2 * min(0.5, 0.8) = -1; 0.5 * 2 * max(0.5, 0.8) = 0.8
    loss = lost(
        torch.tensor([1.5, 1.5, 0.5, 0.5]).log(), torch.zeros(4), [2.0, -2.0, 2.0, -2.0], Bounds(LOW, HIGH, None, 0.5)
    )
    assert_close(loss.value_T, torch.tensor([-2.56, 1.5, -1.0, 0.8]))
    assert_close(loss.metrics["ratio"], torch.tensor([1.5, 1.5, 0.5, 0.5]))
    assert loss.metrics["clipped"].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_dual_clip_by_hand() -> None:
    # ratio 5 with advantage -2 costs 10, or 2 * 3 = 6 under a dual clip of 3; a positive advantage knows no dual clip
    loss = lost(torch.tensor([5.0, 5.0, 2.0]).log(), torch.zeros(3), [-2.0, 2.0, -2.0], Bounds(LOW, HIGH, 3.0, 1.0))
    assert_close(loss.value_T, torch.tensor([6.0, -2.56, 4.0]))
    assert loss.metrics["clipped"].tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("dual", [None, 3.0])
def test_clipped_tokens_are_those_without_gradient(dual: float | None) -> None:
    given = tokens()
    loss = clipped(given, Bounds(LOW, HIGH, dual, 1.0))
    (gradient_T,) = torch.autograd.grad(loss.value_T.sum(), given.logprob_T)
    still_T = (gradient_T == 0) & (given.advantage_T != 0)
    assert loss.metrics["clipped"].tolist() == still_T.double().tolist()
    assert not any(metric_T.requires_grad for metric_T in loss.metrics.values())


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    logprob_T = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = lost(logprob_T, logprob_T.detach(), [0.5, -0.25], Bounds(LOW, HIGH, 3.0, 1.0))
    (gradient_T,) = torch.autograd.grad(loss.value_T.sum(), logprob_T)
    assert gradient_T.tolist() == [-0.5, 0.25]


def test_logprobs_far_apart_stay_finite() -> None:
    logprob_T = torch.tensor([0.0, 0.0, -500.0], requires_grad=True)
    loss = lost(logprob_T, torch.tensor([-500.0, -500.0, 0.0]), [0.0, -1.0, 1.0], Bounds(LOW, HIGH, None, 1.0))
    (gradient_T,) = torch.autograd.grad(loss.value_T.sum(), logprob_T)
    assert loss.value_T.isfinite().all()
    assert gradient_T.isfinite().all()
