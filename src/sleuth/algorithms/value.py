"""The loss of the critic, before any mean is taken.

_T sampled tokens.
"""

import torch
from torch import Tensor

from sleuth.algorithms.losses.tokens import TokenLoss
from sleuth.algorithms.shapes import vectors


def clipped_value(value_T: Tensor, old_T: Tensor, return_T: Tensor, clip: float) -> TokenLoss:
    """Half the squared error, or that of the value held within `clip` of the old one where it is larger.

    It is the clipping of PPO for values, from its authors' code (described in arXiv 2005.12729).
    """
    vectors(value=value_T, old=old_T, returns=return_T)
    if not clip > 0:
        raise ValueError(f"clip = {clip:g} would hold every value where it is; choose a number above 0")
    free_T = (value_T - return_T).square()
    held_T = (old_T + (value_T - old_T).clamp(-clip, clip) - return_T).square()
    metrics = {"value": value_T.detach(), "clipped": (held_T > free_T).to(free_T.dtype)}
    return TokenLoss(0.5 * torch.maximum(free_T, held_T), metrics)
