"""An advantage, a policy loss and an off-policy correction, each a few lines of PyTorch."""

import torch
from torch import Tensor

from sleuth.algorithms.loss import Bounds, Sampled, TokenLoss


def sign_advantage(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """+1 above the mean of the batch, -1 below it; groups are ignored."""
    return (rewards_N - rewards_N.mean()).sign()


def unclipped(sampled: Sampled, bounds: Bounds) -> TokenLoss:
    """The importance-weighted policy gradient, without clipping."""
    ratio_T = (sampled.logprob_T - sampled.old_T).exp()
    return TokenLoss(-ratio_T * sampled.advantage_T, {"ratio": ratio_T.detach()})


def soft_weights(old_T: Tensor, rollout_T: Tensor, row_T: Tensor) -> Tensor:
    """Square root of the importance ratio: less variance, some bias."""
    return torch.exp(0.5 * (old_T - rollout_T)).clamp(max=2.0)
