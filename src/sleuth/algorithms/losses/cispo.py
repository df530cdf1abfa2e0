"""CISPO (arXiv 2506.13585, eq. 4): the importance weight is clipped, and no token loses its gradient.

_T sampled tokens.
"""

from sleuth.algorithms.losses.tokens import Bounds, Sampled, TokenLoss
from sleuth.algorithms.ratio import ratio


def cispo(sampled: Sampled, bounds: Bounds) -> TokenLoss:
    """The loss of REINFORCE, -advantage x logprob, times the clipped ratio, through which no gradient goes."""
    if bounds.dual is not None:
        raise ValueError(f"dual = {bounds.dual:g} has no effect in cispo; remove it")
    ratio_T = ratio(sampled.logprob_T.detach(), sampled.old_T)
    held_T = bounds.clamped(ratio_T)
    weight_T = bounds.weight(sampled.advantage_T) * held_T
    metrics = {"ratio": ratio_T, "clipped": (held_T != ratio_T).to(ratio_T.dtype)}
    return TokenLoss(-weight_T * sampled.advantage_T * sampled.logprob_T, metrics)
