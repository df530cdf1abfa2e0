"""The loss of PPO and GRPO: the clipped surrogate of each token's own ratio (arXiv 1707.06347, eq. 7)."""

from sleuth.algorithms.losses.surrogate import pessimistic
from sleuth.algorithms.losses.tokens import Bounds, Sampled, TokenLoss
from sleuth.algorithms.ratio import ratio


def clipped(sampled: Sampled, bounds: Bounds) -> TokenLoss:
    """The surrogate of each token."""
    return pessimistic(ratio(sampled.logprob_T, sampled.old_T), sampled.advantage_T, bounds)
