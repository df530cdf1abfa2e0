"""KL estimators against numbers worked by hand, and against the KL of a small distribution.

_N trajectories, _T sampled tokens, _V vocabulary.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.kl import ESTIMATORS, k1, k2, k3, subtract_penalty

LOGPROB_T = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
REFERENCE_T = torch.tensor([-1.5, -1.0, -0.5], dtype=torch.float64)


def test_k1() -> None:
    # -1 + 1.5 = 0.5; -2 + 1 = -1; 0
    assert_close(k1(LOGPROB_T, REFERENCE_T), torch.tensor([0.5, -1.0, 0.0], dtype=torch.float64))


def test_k2() -> None:
    # 0.25 / 2 = 0.125; 1 / 2 = 0.5; 0
    assert_close(k2(LOGPROB_T, REFERENCE_T), torch.tensor([0.125, 0.5, 0.0], dtype=torch.float64))


def test_k3() -> None:
    # e^-0.5 - 1 + 0.5 = 0.606530660 - 0.5 = 0.106530660; e - 1 - 1 = 0.718281828; 0
    expected_T = torch.tensor([0.106530660, 0.718281828, 0.0], dtype=torch.float64)
    assert_close(k3(LOGPROB_T, REFERENCE_T), expected_T, atol=1e-9, rtol=0.0)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_the_unbiased_ones_average_to_the_kl(name: str) -> None:
    policy_V = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    reference_V = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    # 0.5 ln 2 + 0.25 ln 1 + 0.25 ln 0.5 = 0.25 ln 2
    mean = (policy_V * ESTIMATORS[name](policy_V.log(), reference_V.log())).sum().item()
    assert mean == pytest.approx(0.25 * math.log(2))


def test_gradients() -> None:
    # k1: 1; k2: logprob - reference; k3: 1 - exp(reference - logprob)
    expected = {"k1": [1.0, 1.0, 1.0], "k2": [0.5, -1.0, 0.0], "k3": [1 - math.exp(-0.5), 1 - math.e, 0.0]}
    for name, estimator in ESTIMATORS.items():
        logprob_T = LOGPROB_T.clone().requires_grad_()
        (gradient_T,) = torch.autograd.grad(estimator(logprob_T, REFERENCE_T).sum(), logprob_T)
        assert gradient_T.tolist() == pytest.approx(expected[name]), name


def test_only_k1_in_the_reward_has_the_gradient_of_the_kl() -> None:
    """Charging the reward descends the mean of estimate times the gradient of logprob; k2 and k3 raise the KL here."""
    reference_V = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    logits_V = torch.tensor([0.6, 0.35, 0.05], dtype=torch.float64).log().requires_grad_()
    logprob_V = logits_V.log_softmax(0)
    (slope_V,) = torch.autograd.grad((logprob_V.exp() * (logprob_V - reference_V.log())).sum(), logits_V)
    charged = {}
    for name, estimator in ESTIMATORS.items():
        logprob_V = logits_V.log_softmax(0)
        worth_V = (logprob_V.exp() * estimator(logprob_V, reference_V.log())).detach()
        (charged[name],) = torch.autograd.grad((worth_V * logprob_V).sum(), logits_V)
    assert_close(charged["k1"], slope_V)
    assert [name for name, each_V in charged.items() if each_V @ slope_V < 0] == ["k2", "k3"]


def test_logprobs_far_apart_stay_finite() -> None:
    far_T = torch.tensor([-500.0, 0.0])
    assert k3(far_T, far_T.flip(0)).isfinite().all()


def test_charge() -> None:
    # 1 - 0.1 * 2 = 0.8; 0 - 0.1 * -3 = 0.3
    kl_sums_N = torch.tensor([2.0, -3.0], requires_grad=True)
    charged_N = subtract_penalty(torch.tensor([1.0, 0.0]), kl_sums_N, 0.1)
    assert_close(charged_N, torch.tensor([0.8, 0.3]))
    assert not charged_N.requires_grad


@pytest.mark.parametrize("reference_T", [torch.zeros(1), torch.zeros(3, 1)])
def test_vectors_of_two_lengths_are_refused(reference_T: Tensor) -> None:
    for estimator in ESTIMATORS.values():
        with pytest.raises(ValueError, match=r"logprob \(3,\) and reference .*"):
            estimator(LOGPROB_T, reference_T)
    with pytest.raises(ValueError, match=r"rewards \(3,\) and kl .*"):
        subtract_penalty(torch.zeros(3), reference_T, 0.1)
