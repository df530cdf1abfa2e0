"""The clipped loss against a scalar form of it, value and gradient.

_T sampled tokens.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.loss import clipped

LOW, HIGH = 0.2, 0.28
# Below, inside and above the clip range, for advantages of every sign.
RATIOS = [0.5, 0.79, 0.81, 1.0, 1.27, 1.29, 3.0]
ADVANTAGES = [1.5, -0.7, 0.0]
PAIRS = [(ratio, advantage) for ratio in RATIOS for advantage in ADVANTAGES]


def naive(logprob: Tensor, old: float, advantage: float, negative_weight: float) -> Tensor:
    """min(ratio A, clip(ratio) A), negated, one token at a time."""
    ratio = torch.exp(logprob - old)
    bounded = (
        ratio if 1 - LOW <= ratio.item() <= 1 + HIGH else torch.full_like(ratio, 1 - LOW if ratio < 1 else 1 + HIGH)
    )
    gain, bounded_gain = ratio * advantage, bounded * advantage
    loss = -(gain if gain.item() <= bounded_gain.item() else bounded_gain)
    return loss * negative_weight if advantage < 0 else loss


def tokens() -> tuple[Tensor, Tensor, Tensor]:
    old_T = torch.linspace(-3.0, -0.5, len(PAIRS), dtype=torch.float64)
    logprob_T = old_T + torch.tensor([math.log(ratio) for ratio, _ in PAIRS], dtype=torch.float64)
    return logprob_T.requires_grad_(), old_T, torch.tensor([advantage for _, advantage in PAIRS], dtype=torch.float64)


@pytest.mark.parametrize("negative_weight", [1.0, 0.4, 0.0])
def test_value_and_gradient_are_those_of_the_naive_form(negative_weight: float) -> None:
    logprob_T, old_T, advantage_T = tokens()
    value_T = clipped(logprob_T, old_T, advantage_T, LOW, HIGH, negative_weight).value_T
    singles = [logprob.detach().requires_grad_() for logprob in logprob_T]
    losses = [
        naive(single, old, advantage, negative_weight)
        for single, old, advantage in zip(singles, old_T.tolist(), advantage_T.tolist(), strict=True)
    ]
    assert_close(value_T, torch.stack(losses))
    (gradient_T,) = torch.autograd.grad(value_T.sum(), logprob_T)
    expected = torch.autograd.grad(torch.stack(losses).sum(), singles, allow_unused=True, materialize_grads=True)
    assert_close(gradient_T, torch.stack(expected))


def test_by_hand() -> None:
    # ratios 1.5, 1.5, 0.5, 0.5 with advantages 2, -2, 2, -2, bounds 0.8 and 1.28, negatives at half weight:
    # -2 * min(1.5, 1.28) = -2.56; 0.5 * 2 * max(1.5, 1.28) = 1.5;
    # -2 * min(0.5, 0.8) = -1; 0.5 * 2 * max(0.5, 0.8) = 0.8
    logprob_T = torch.tensor([1.5, 1.5, 0.5, 0.5]).log()
    loss = clipped(logprob_T, torch.zeros(4), torch.tensor([2.0, -2.0, 2.0, -2.0]), LOW, HIGH, 0.5)
    assert_close(loss.value_T, torch.tensor([-2.56, 1.5, -1.0, 0.8]))
    assert_close(loss.metrics["ratio"], torch.tensor([1.5, 1.5, 0.5, 0.5]))
    assert loss.metrics["clipped"].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_clipped_tokens_are_those_without_gradient() -> None:
    logprob_T, old_T, advantage_T = tokens()
    loss = clipped(logprob_T, old_T, advantage_T, LOW, HIGH, 1.0)
    (gradient_T,) = torch.autograd.grad(loss.value_T.sum(), logprob_T)
    still = (gradient_T == 0) & (advantage_T != 0)
    assert loss.metrics["clipped"].tolist() == still.double().tolist()
    assert not any(metric_T.requires_grad for metric_T in loss.metrics.values())


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    logprob_T = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = clipped(logprob_T, logprob_T.detach(), torch.tensor([0.5, -0.25]), LOW, HIGH, 1.0)
    (gradient_T,) = torch.autograd.grad(loss.value_T.sum(), logprob_T)
    assert gradient_T.tolist() == [-0.5, 0.25]


def test_logprobs_far_apart_stay_finite() -> None:
    logprob_T = torch.tensor([0.0, 0.0, -500.0], requires_grad=True)
    old_T = torch.tensor([-500.0, -500.0, 0.0])
    loss = clipped(logprob_T, old_T, torch.tensor([0.0, -1.0, 1.0]), LOW, HIGH, 1.0)
    (gradient_T,) = torch.autograd.grad(loss.value_T.sum(), logprob_T)
    assert loss.value_T.isfinite().all()
    assert gradient_T.isfinite().all()
