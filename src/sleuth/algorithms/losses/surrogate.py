"""The pessimistic surrogate of PPO (arXiv 1707.06347, eq. 7) for any ratio, of tokens or of trajectories.

_T sampled tokens. Its two bounds are apart as in DAPO (clip-higher, arXiv 2503.14476), and a negative advantage may
have a third, above both (dual clip, arXiv 1912.09729): without it the loss of a token that became much likelier
has no bound.
"""

import torch
from torch import Tensor

from sleuth.algorithms.losses.tokens import Bounds, TokenLoss


def pessimistic(ratio_T: Tensor, advantage_T: Tensor, bounds: Bounds) -> TokenLoss:
    """The worse of the gain as it is and the gain within the bounds, negated; clipped tokens have no gradient."""
    free_T = -advantage_T * ratio_T
    held_T = -advantage_T * bounds.clamped(ratio_T)
    value_T = torch.maximum(free_T, held_T)
    clipped_T = held_T > free_T
    if bounds.dual is not None:
        above_T = (advantage_T < 0) & (ratio_T > bounds.dual)
        value_T = torch.where(above_T, -advantage_T * bounds.dual, value_T)
        clipped_T = clipped_T | above_T
    metrics = {"ratio": ratio_T.detach(), "clipped": clipped_T.to(ratio_T.dtype)}
    return TokenLoss(bounds.weight(advantage_T) * value_T, metrics)
