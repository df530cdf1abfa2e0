"""The policy loss of each sampled token, before any mean is taken.

_T sampled tokens, of all trajectories of a pack one after another.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# exp(20) is finite in every float type trained in, and far outside any clip range.
LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """A loss for each token, and what to average over tokens for the record (without gradient)."""

    value_T: Tensor
    metrics: dict[str, Tensor]


PolicyLoss = Callable[[Tensor, Tensor, Tensor, float, float, float], TokenLoss]


def clipped(
    logprob_T: Tensor, old_T: Tensor, advantage_T: Tensor, clip_low: float, clip_high: float, negative_weight: float
) -> TokenLoss:
    """PPO's pessimistic surrogate (arXiv 1707.06347, eq. 7), bounds apart (clip-higher, arXiv 2503.14476)."""
    ratio_T = (logprob_T - old_T).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    free_T = -advantage_T * ratio_T
    held_T = -advantage_T * ratio_T.clamp(1.0 - clip_low, 1.0 + clip_high)
    weight_T = torch.where(advantage_T < 0, negative_weight, 1.0).to(free_T.dtype)
    metrics = {"ratio": ratio_T.detach(), "clipped": (held_T > free_T).to(free_T.dtype)}
    return TokenLoss(weight_T * torch.maximum(free_T, held_T), metrics)


LOSSES: dict[str, PolicyLoss] = {"clipped": clipped}
