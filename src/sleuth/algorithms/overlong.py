"""Soft punishment of long answers (DAPO, arXiv 2503.14476, eq. 13).

_N trajectories.
"""

from torch import Tensor

from sleuth.algorithms.shapes import vectors


def shaped(rewards_N: Tensor, lengths_N: Tensor, limit: int, buffer: int) -> Tensor:
    """The rewards less a punishment that rises from 0 to 1 over the last `buffer` tokens before `limit`."""
    vectors(rewards=rewards_N, lengths=lengths_N)
    if not 0 < buffer <= limit:
        raise ValueError(f"the buffer of {buffer} tokens must be above 0 and within the limit of {limit}")
    return rewards_N - ((lengths_N - (limit - buffer)) / buffer).clamp(0.0, 1.0)
