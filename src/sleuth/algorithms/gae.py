"""Generalised advantage estimation (arXiv 1506.02438, eq. 16), over sampled tokens only.

_N trajectories, _T sampled tokens of all trajectories one after another, _L tokens of the longest. Retrieved tokens are
not among the _T: what follows the last token before an observation is the first sampled token after it, so that
no value or decay is spent on text the policy did not write.
"""

from itertools import pairwise

import torch
from torch import Tensor

from sleuth.algorithms.shapes import vectors


@torch.no_grad()
def gae(rewards_T: Tensor, values_T: Tensor, lengths_N: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """The advantage of each token, and the return its value should have been; `lengths_N` says where rows end."""
    vectors(rewards=rewards_T, values=values_T)
    vectors(lengths=lengths_N)
    if int(lengths_N.sum()) != len(values_T) or (lengths_N < 0).any():
        raise ValueError(f"lengths {lengths_N.tolist()} must be counts that add up to {len(values_T)} tokens")
    if not len(values_T):
        return values_T.clone(), values_T.clone()
    left_T, row_T = _tokens_left(lengths_N.to(values_T.device))
    next_T = torch.where(left_T > 0, values_T.roll(-1), 0.0)
    error_T = rewards_T + gamma * next_T - values_T
    # Rows are laid side by side by how far a token is from its end; places beyond a row's beginning are never read.
    grid_LN = error_T.new_zeros((int(lengths_N.max()), len(lengths_N)))
    grid_LN[left_T, row_T] = error_T
    for after_N, now_N in pairwise(grid_LN):
        now_N.add_(after_N, alpha=gamma * lam)
    advantages_T = grid_LN[left_T, row_T]
    return advantages_T, advantages_T + values_T


def _tokens_left(lengths_N: Tensor) -> tuple[Tensor, Tensor]:
    """How many tokens of its row follow each token, and which row that is."""
    row_T = torch.arange(len(lengths_N), device=lengths_N.device).repeat_interleave(lengths_N)
    end_N = lengths_N.cumsum(0)
    return end_N[row_T] - 1 - torch.arange(len(row_T), device=lengths_N.device), row_T
