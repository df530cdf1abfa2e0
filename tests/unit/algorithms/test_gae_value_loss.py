"""The loss of the critic against numbers worked by hand, and against a scalar form of it, value and gradient.

_T sampled tokens.
"""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.gae import clipped_value

CLIP = 0.2
# Moved up and down, within the clip and beyond it, towards the return and away from it.
CASES = [(moved, goal) for moved in (-0.5, -0.1, 0.0, 0.1, 0.5) for goal in (-1.0, -0.3, 0.25, 1.0)]
OLD_T = torch.linspace(-1.0, 1.0, len(CASES), dtype=torch.float64)


def naive(value: Tensor, old: float, goal: float) -> Tensor:
    """The larger of two squared errors, one token at a time."""
    held = value if abs(value.item() - old) <= CLIP else torch.tensor(old + (CLIP if value > old else -CLIP))
    free_error, held_error = (value - goal) ** 2, (held - goal) ** 2
    return (free_error if free_error.item() >= held_error.item() else held_error) / 2


def test_value_and_gradient_are_those_of_the_naive_form() -> None:
    moved_T, goal_T = torch.tensor(CASES, dtype=torch.float64).unbind(1)
    value_T = (OLD_T + moved_T).requires_grad_()
    return_T = OLD_T + goal_T
    loss = clipped_value(value_T, OLD_T, return_T, CLIP)
    singles = [value.detach().requires_grad_() for value in value_T]
    losses = [naive(*each) for each in zip(singles, OLD_T.tolist(), return_T.tolist(), strict=True)]
    assert_close(loss.value_T, torch.stack(losses))
    (gradient_T,) = torch.autograd.grad(loss.value_T.sum(), value_T)
    expected = torch.autograd.grad(torch.stack(losses).sum(), singles, allow_unused=True, materialize_grads=True)
    assert_close(gradient_T, torch.stack(expected))
    assert loss.metrics["clipped"].tolist() == (gradient_T == 0).double().tolist()


def test_by_hand() -> None:
    # values 0.6, 0.6, 0.1 from 0, returns 1, -1, 1, held at 0.2, 0.2, 0.1:
    # max(0.16, 0.64) / 2 = 0.32; max(2.56, 1.44) / 2 = 1.28; 0.81 / 2 = 0.405
    value_T = torch.tensor([0.6, 0.6, 0.1], requires_grad=True)
    loss = clipped_value(value_T, torch.zeros(3), torch.tensor([1.0, -1.0, 1.0]), CLIP)
    assert_close(loss.value_T, torch.tensor([0.32, 1.28, 0.405]))
    assert loss.metrics["clipped"].tolist() == [1.0, 0.0, 0.0]
    assert_close(loss.metrics["value"], value_T.detach())
    assert not any(metric_T.requires_grad for metric_T in loss.metrics.values())


def test_a_clip_that_lets_nothing_move_is_refused() -> None:
    with pytest.raises(ValueError, match="clip = 0 would freeze every value"):
        clipped_value(torch.zeros(3), torch.zeros(3), torch.zeros(3), 0.0)


@pytest.mark.parametrize("wrong_T", [torch.zeros(1), torch.zeros(3, 1)])
def test_vectors_of_two_lengths_are_refused(wrong_T: Tensor) -> None:
    right_T = torch.zeros(3)
    for given in ((wrong_T, right_T, right_T), (right_T, wrong_T, right_T), (right_T, right_T, wrong_T)):
        with pytest.raises(ValueError, match="vectors"):
            clipped_value(*given, CLIP)
