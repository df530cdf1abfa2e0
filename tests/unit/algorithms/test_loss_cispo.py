"""CISPO against a scalar form of it, value and gradient.

_T sampled tokens.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.loss import Bounds, Sampled, cispo

RATIOS = [0.3, 0.79, 0.81, 1.0, 1.9, 2.1, 9.0]
PAIRS = [(ratio, advantage) for ratio in RATIOS for advantage in (1.5, -0.7, 0.0)]
BOUNDS = Bounds(0.2, 1.0, None, 0.4)


def naive(logprob: Tensor, old: float, advantage: float) -> Tensor:
    """A plain number, the clipped ratio, times advantage times logprob, negated, one token at a time."""
    held = min(max(math.exp(logprob.item() - old), 0.8), 2.0)
    return -held * advantage * logprob * (0.4 if advantage < 0 else 1.0)


def test_value_and_gradient_are_those_of_the_naive_form() -> None:
    old_T = torch.linspace(-3.0, -0.5, len(PAIRS), dtype=torch.float64)
    ratio_T, advantage_T = torch.tensor(PAIRS, dtype=torch.float64).unbind(1)
    logprob_T = (old_T + ratio_T.log()).requires_grad_()
    value_T = cispo(Sampled(logprob_T, old_T, advantage_T, torch.zeros(len(PAIRS))), BOUNDS).value_T
    singles = [logprob.detach().requires_grad_() for logprob in logprob_T]
    losses = [naive(*each) for each in zip(singles, old_T.tolist(), advantage_T.tolist(), strict=True)]
    assert_close(value_T, torch.stack(losses))
    (gradient_T,) = torch.autograd.grad(value_T.sum(), logprob_T)
    assert_close(gradient_T, torch.stack(torch.autograd.grad(torch.stack(losses).sum(), singles)))
    assert (gradient_T != 0).tolist() == (advantage_T != 0).tolist()  # where the clipped loss gives up, this does not


def test_by_hand() -> None:
    # logprobs ln 0.5 and ln 0.1 from ln 0.1 and ln 0.5: ratios 5 and 0.2, held at 2 and 0.8
    # -2 * 3 * ln 0.5 = 4.158883; 0.4 * 0.8 * ln 0.1 = -0.736827
    logprob_T = torch.tensor([0.5, 0.1]).log().requires_grad_()
    given = Sampled(logprob_T, logprob_T.detach().flip(0), torch.tensor([3.0, -1.0]), torch.tensor([0, 1]))
    loss = cispo(given, BOUNDS)
    assert_close(loss.value_T, torch.tensor([4.158883, -0.736827]))
    assert_close(loss.metrics["ratio"], torch.tensor([5.0, 0.2]))
    assert loss.metrics["clipped"].tolist() == [1.0, 1.0]
    (gradient_T,) = torch.autograd.grad(loss.value_T.sum(), logprob_T)
    assert_close(gradient_T, torch.tensor([-6.0, 0.32]))
    assert not any(metric_T.requires_grad for metric_T in loss.metrics.values())


def test_ratios_within_the_bounds_are_not_clipped() -> None:
    given = Sampled(torch.tensor([-1.0]), torch.tensor([-1.1]), torch.tensor([1.0]), torch.tensor([0]))
    assert cispo(given, BOUNDS).metrics["clipped"].tolist() == [0.0]


def test_a_dual_clip_is_refused() -> None:
    one_T = torch.zeros(1)
    with pytest.raises(ValueError, match="dual = 3 has no effect in cispo"):
        cispo(Sampled(one_T, one_T, one_T, one_T), Bounds(0.1, 0.1, 3.0))
