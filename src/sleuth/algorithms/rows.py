"""Sums over the members of rows or groups that are told apart by keys.

_T members, _N rows. Keys are any integers in any order.
"""

import torch
from torch import Tensor


def numbered(key_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The keys in order, the place of each member's key among them, and how many members each has."""
    key_N, index_T, count_N = torch.unique(key_T, return_inverse=True, return_counts=True)
    return key_N, index_T, count_N


def sums(values_T: Tensor, index_T: Tensor, count_N: Tensor) -> Tensor:
    """The sum over the members of each row."""
    return values_T.new_zeros(count_N.shape).index_add(0, index_T, values_T)


def means(values_T: Tensor, index_T: Tensor, count_N: Tensor) -> Tensor:
    """The mean over the members of each row."""
    return sums(values_T, index_T, count_N) / count_N
