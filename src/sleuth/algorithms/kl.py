"""KL penalty against the reference: estimators of KL(policy || reference) from sampled tokens, and its coefficient.

Suffixes: N trajectories, T sampled tokens. As a loss, k2 (Schulman 2020) has the expected gradient of this KL, k3
that of KL(reference || policy), and k1 zero, so k1 belongs in the reward.
"""

import math
from collections.abc import Callable

from torch import Tensor

from sleuth.algorithms.segments import LOG_RATIO_BOUND, require_vectors

Estimator = Callable[[Tensor, Tensor], Tensor]

MAX_ERROR = 0.2  # of the adaptive controller, so that an outlier batch changes the coefficient only slightly


def k1(logprob_T: Tensor, reference_T: Tensor) -> Tensor:
    """The log ratio: unbiased, positive or negative."""
    require_vectors(logprob=logprob_T, reference=reference_T)
    return logprob_T - reference_T


def k2(logprob_T: Tensor, reference_T: Tensor) -> Tensor:
    """Half the squared log ratio: biased, never negative."""
    require_vectors(logprob=logprob_T, reference=reference_T)
    return 0.5 * (logprob_T - reference_T).square()


def k3(logprob_T: Tensor, reference_T: Tensor) -> Tensor:
    """exp(d) - 1 - d with d = reference - policy: unbiased, never negative."""
    require_vectors(logprob=logprob_T, reference=reference_T)
    difference_T = (reference_T - logprob_T).clamp(max=LOG_RATIO_BOUND)
    return difference_T.expm1() - difference_T


ESTIMATORS: dict[str, Estimator] = {"k1": k1, "k2": k2, "k3": k3}


def subtract_penalty(rewards_N: Tensor, kl_sums_N: Tensor, coefficient: float) -> Tensor:
    """Subtract each trajectory's KL, summed over its sampled tokens and scaled by `coefficient`, from its reward."""
    require_vectors(rewards=rewards_N, kl=kl_sums_N)
    return rewards_N - coefficient * kl_sums_N.detach()


def adapt_coefficient(coefficient: float, measured: float, target: float, horizon: int, samples: int) -> float:
    """Adaptive controller (arXiv 1909.08593): the coefficient after `samples` trajectories with KL `measured`.

    One call changes the coefficient by at most 20%, and by proportionally less if `samples` is below `horizon`.
    """
    if not (target > 0 and horizon > 0 and samples >= 0 and math.isfinite(measured)):
        raise ValueError(
            f"target = {target:g} and horizon = {horizon} must be above 0, samples = {samples} at least 0, and the "
            f"measured KL {measured:g} finite"
        )
    error = max(-MAX_ERROR, min(MAX_ERROR, measured / target - 1.0))
    return coefficient * (1.0 + error * min(1.0, samples / horizon))
