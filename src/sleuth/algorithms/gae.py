"""PPO's critic: generalised advantage estimation (arXiv 1506.02438, eq. 16) and the clipped value loss.

Suffixes: N trajectories, T sampled tokens of all trajectories in order, L tokens of the longest. Retrieved tokens
are not among the T: the successor of the last token before an observation is the first sampled token after it, so text
that the policy did not write is neither valued nor discounted.
"""

from itertools import pairwise

import torch
from torch import Tensor

from sleuth.algorithms.loss import TokenLoss
from sleuth.algorithms.segments import require_vectors


@torch.no_grad()
def gae(rewards_T: Tensor, values_T: Tensor, lengths_N: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return the advantage and the value target of each token; `lengths_N` is the number of tokens per trajectory."""
    require_vectors(rewards=rewards_T, values=values_T)
    require_vectors(lengths=lengths_N)
    if int(lengths_N.sum()) != len(values_T) or (lengths_N < 0).any():
        raise ValueError(f"lengths {lengths_N.tolist()} must be counts that add up to {len(values_T)} tokens")
    if not len(values_T):
        return values_T.clone(), values_T.clone()
    lengths_N = lengths_N.to(values_T.device)
    row_T = torch.arange(len(lengths_N), device=lengths_N.device).repeat_interleave(lengths_N)
    left_T = lengths_N.cumsum(0)[row_T] - 1 - torch.arange(len(row_T), device=lengths_N.device)
    next_T = torch.where(left_T > 0, values_T.roll(-1), 0.0)
    error_T = rewards_T + gamma * next_T - values_T
    # One column per trajectory, indexed by distance from its end, so that one loop over L covers all trajectories.
    grid_LN = error_T.new_zeros((int(lengths_N.max()), len(lengths_N)))
    grid_LN[left_T, row_T] = error_T
    for after_N, now_N in pairwise(grid_LN):
        now_N.add_(after_N, alpha=gamma * lam)
    advantages_T = grid_LN[left_T, row_T]
    return advantages_T, advantages_T + values_T


def clipped_value(value_T: Tensor, old_T: Tensor, return_T: Tensor, clip: float) -> TokenLoss:
    """PPO's value loss (described in arXiv 2005.12729): the larger squared error, with or without clipping."""
    require_vectors(value=value_T, old=old_T, returns=return_T)
    if not clip > 0:
        raise ValueError(f"clip = {clip:g} would freeze every value; use a number above 0")
    free_T = (value_T - return_T).square()
    clipped_T = (old_T + (value_T - old_T).clamp(-clip, clip) - return_T).square()
    metrics = {"value": value_T.detach(), "clipped": (clipped_T > free_T).to(free_T.dtype)}
    return TokenLoss(0.5 * torch.maximum(free_T, clipped_T), metrics)
