"""Likelihood penalties against numbers worked by hand.

_T sampled tokens.
"""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.likelihood import PENALTIES, action_keys, llds, sapo
from sleuth.algorithms.loss import Sampled

# Four actions: 0 fell by .1, 1 rose by .1, 2 fell but is bad, 3 fell by .2 and has a token with a negative advantage.
NEW_T = torch.tensor([-1.3, -0.8, -1.2, -0.7, -3.0, -1.2, -1.5])
OLD_T = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0])
ADVANTAGE_T = torch.tensor([0.0, 0.5, 0.5, 0.5, -1.0, 0.5, -0.5])
UNIT_T = torch.tensor([0, 0, 1, 1, 2, 3, 3])


def sampled(logprob_T: Tensor = NEW_T) -> Sampled:
    return Sampled(logprob_T, OLD_T, ADVANTAGE_T, UNIT_T)


def test_llds_penalises_the_tokens_that_fell_in_good_actions_that_fell() -> None:
    # Action 0 fell by .3 - .2 = .1: its first token fell by .3, the second rose. Action 3: .2, the bad token is left.
    assert_close(llds(sampled(), 1.0), torch.tensor([0.3, 0.0, 0.0, 0.0, 0.0, 0.2, 0.0]))


def test_llds_of_the_whole_trajectory_hangs_on_all_its_actions() -> None:
    whole = Sampled(NEW_T, OLD_T, ADVANTAGE_T, torch.zeros_like(UNIT_T))
    # .3 - .2 + .2 - .3 + .2 = .2 over the tokens with an advantage of 0 or more: the token of action 1 counts too.
    assert_close(llds(whole, 1.0), torch.tensor([0.3, 0.0, 0.2, 0.0, 0.0, 0.2, 0.0]))


def test_sapo_penalises_the_positive_tokens_that_fell_whatever_the_action_did() -> None:
    assert_close(sapo(sampled(), 1.0), torch.tensor([0.0, 0.0, 0.2, 0.0, 0.0, 0.2, 0.0]))


@pytest.mark.parametrize(("threshold", "expected"), [(0.9, [0.2, 0.2]), (0.8, [0.0, 0.0])])
def test_a_threshold_leaves_small_drops_alone(threshold: float, expected: list[float]) -> None:
    # exp(-.2) = .819, exp(-.3) = .741
    assert sapo(sampled(), threshold)[[2, 5]].tolist() == pytest.approx(expected)
    assert llds(sampled(), threshold)[[0, 5]].tolist() == pytest.approx([0.3, expected[1]])


def test_sapo_above_one_rewards_tokens_that_rose_a_little() -> None:
    # exp(.2) = 1.22 < 1.3 < exp(.3) = 1.35
    assert_close(sapo(sampled(), 1.3), torch.tensor([0.0, -0.2, 0.2, 0.0, 0.0, 0.2, 0.0]))


def test_the_gradient_raises_the_penalised_tokens_alone() -> None:
    expected = {"llds": [-1.0, 0, 0, 0, 0, -1.0, 0], "sapo": [0, 0, -1.0, 0, 0, -1.0, 0]}
    for name, penalty in PENALTIES.items():
        logprob_T = NEW_T.clone().requires_grad_()
        (gradient_T,) = torch.autograd.grad(penalty(sampled(logprob_T), 1.0).sum(), logprob_T)
        assert gradient_T.tolist() == expected[name], name


@pytest.mark.parametrize("name", sorted(PENALTIES))
def test_nothing_is_penalised_while_the_weights_are_those_that_sampled(name: str) -> None:
    logprob_T = OLD_T.clone().requires_grad_()
    (gradient_T,) = torch.autograd.grad(PENALTIES[name](sampled(logprob_T), 1.0).sum(), logprob_T)
    assert not gradient_T.any()


@pytest.mark.parametrize("name", sorted(PENALTIES))
def test_no_tokens_have_no_penalty(name: str) -> None:
    none_T = torch.zeros(0)
    assert len(PENALTIES[name](Sampled(none_T, none_T, none_T, action_keys(none_T.long(), none_T.long())), 1.0)) == 0


def test_actions_are_turns_of_one_trajectory() -> None:
    keys = action_keys(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 2, 0, 1])).tolist()
    assert [keys.index(each) for each in keys] == [0, 0, 2, 3, 4]
