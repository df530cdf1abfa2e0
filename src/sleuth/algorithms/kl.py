"""Estimates of KL(policy || reference) from the logprobs of tokens the policy sampled (Schulman 2020).

_N trajectories, _T sampled tokens. As a loss, k2 has on average the gradient of that KL, k3 the gradient of
KL(reference || policy), and k1 none: k1 belongs in the reward.
"""

from collections.abc import Callable

from torch import Tensor

from sleuth.algorithms.ratio import LOG_RATIO_BOUND
from sleuth.algorithms.shapes import vectors

Estimator = Callable[[Tensor, Tensor], Tensor]


def k1(logprob_T: Tensor, reference_T: Tensor) -> Tensor:
    """The log ratio: unbiased, of either sign."""
    vectors(logprob=logprob_T, reference=reference_T)
    return logprob_T - reference_T


def k2(logprob_T: Tensor, reference_T: Tensor) -> Tensor:
    """Half the squared log ratio: biased, never negative."""
    vectors(logprob=logprob_T, reference=reference_T)
    return 0.5 * (logprob_T - reference_T).square()


def k3(logprob_T: Tensor, reference_T: Tensor) -> Tensor:
    """exp(d) - 1 - d with d = reference - policy: unbiased, never negative."""
    vectors(logprob=logprob_T, reference=reference_T)
    difference_T = (reference_T - logprob_T).clamp(max=LOG_RATIO_BOUND)
    return difference_T.expm1() - difference_T


def charge(rewards_N: Tensor, kl_sums_N: Tensor, coefficient: float) -> Tensor:
    """The rewards less the KL of each trajectory, summed over its sampled tokens."""
    vectors(rewards=rewards_N, kl=kl_sums_N)
    return rewards_N - coefficient * kl_sums_N.detach()


ESTIMATORS: dict[str, Estimator] = {"k1": k1, "k2": k2, "k3": k3}
