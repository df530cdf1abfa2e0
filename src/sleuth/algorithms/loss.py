"""Policy losses per sampled token, before aggregation.

Suffixes: T sampled tokens of all trajectories in a pack, in order; N trajectories.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sleuth.algorithms.segments import bounded_exp, index_rows, require_vectors, row_means


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """The sampled tokens of whole trajectories; `row_T` is the trajectory index of each token."""

    logprob_T: Tensor
    old_T: Tensor
    advantage_T: Tensor
    row_T: Tensor

    def __post_init__(self) -> None:
        require_vectors(logprob=self.logprob_T, old=self.old_T, advantage=self.advantage_T, row=self.row_T)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Clip range [1 - low, 1 + high] of the ratio; `dual` and the weight `negative` apply to negative advantages."""

    low: float
    high: float
    dual: float | None = None
    negative: float = 1.0

    def __post_init__(self) -> None:
        if not (self.low >= 0 and self.high >= 0 and self.negative >= 0):
            raise ValueError(f"{self} has a negative number; low, high and negative must be 0 or more")
        if self.dual is not None and not self.dual > 1:
            raise ValueError(f"dual = {self.dual:g} would clip unchanged tokens; use a ratio above 1")

    def clamp(self, ratio_T: Tensor) -> Tensor:
        return ratio_T.clamp(1.0 - self.low, 1.0 + self.high)

    def weight(self, advantage_T: Tensor) -> Tensor:
        """Loss weight of each token, by the sign of its advantage."""
        return torch.where(advantage_T < 0, self.negative, 1.0).to(advantage_T.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """The loss of each token, and detached per-token metrics to be averaged."""

    value_T: Tensor
    metrics: dict[str, Tensor]


PolicyLoss = Callable[[Sampled, Bounds], TokenLoss]


def clipped(sampled: Sampled, bounds: Bounds) -> TokenLoss:
    """PPO and GRPO (arXiv 1707.06347, eq. 7): the clipped surrogate of each token's ratio."""
    ratio_T = bounded_exp(sampled.logprob_T - sampled.old_T)
    return _surrogate(ratio_T, sampled.advantage_T, bounds)


def gspo(sampled: Sampled, bounds: Bounds) -> TokenLoss:
    """GSPO (arXiv 2507.18071): the ratio of a trajectory is the geometric mean over its tokens (eq. 7).

    This is the token form (eq. 13): the trajectory's ratio as value, with the gradient through the token's own logprob.
    If the tokens of a trajectory share one advantage and weight, it equals the sequence form (eq. 5).
    """
    if bounds.dual is not None:
        raise ValueError(f"dual = {bounds.dual:g} has no effect in gspo; remove it")
    _, index_T, count_N = index_rows(sampled.row_T)
    detached_T = sampled.logprob_T.detach()
    log_ratio_T = row_means(detached_T - sampled.old_T, index_T, count_N)[index_T]
    # logprob - detached is zero and carries the gradient.
    ratio_T = bounded_exp(log_ratio_T + (sampled.logprob_T - detached_T))
    return _surrogate(ratio_T, sampled.advantage_T, bounds)


def cispo(sampled: Sampled, bounds: Bounds) -> TokenLoss:
    """CISPO (arXiv 2506.13585, eq. 4): REINFORCE weighted by the clipped ratio; every token keeps its gradient."""
    if bounds.dual is not None:
        raise ValueError(f"dual = {bounds.dual:g} has no effect in cispo; remove it")
    ratio_T = bounded_exp(sampled.logprob_T.detach() - sampled.old_T)
    clamped_T = bounds.clamp(ratio_T)
    weight_T = bounds.weight(sampled.advantage_T) * clamped_T
    metrics = {"ratio": ratio_T, "clipped": (clamped_T != ratio_T).to(ratio_T.dtype)}
    return TokenLoss(-weight_T * sampled.advantage_T * sampled.logprob_T, metrics)


LOSSES: dict[str, PolicyLoss] = {"clipped": clipped, "gspo": gspo, "cispo": cispo}
TOKENWISE = ("clipped", "cispo")  # losses in which no token depends on others of its trajectory


def _surrogate(ratio_T: Tensor, advantage_T: Tensor, bounds: Bounds) -> TokenLoss:
    """The pessimistic surrogate, with DAPO's separate bounds (arXiv 2503.14476) and dual clip (arXiv 1912.09729).

    Without dual clip, the loss is unbounded for tokens with a negative advantage whose probability increased.
    """
    free_T = -advantage_T * ratio_T
    clamped_T = -advantage_T * bounds.clamp(ratio_T)
    value_T = torch.maximum(free_T, clamped_T)
    clipped_T = clamped_T > free_T
    if bounds.dual is not None:
        above_T = (advantage_T < 0) & (ratio_T > bounds.dual)
        value_T = torch.where(above_T, -advantage_T * bounds.dual, value_T)
        clipped_T = clipped_T | above_T
    metrics = {"ratio": ratio_T.detach(), "clipped": clipped_T.to(ratio_T.dtype)}
    return TokenLoss(bounds.weight(advantage_T) * value_T, metrics)
