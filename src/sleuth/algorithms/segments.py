"""Tensor helpers that the algorithms share: shape checks, per-row sums, bounded ratios.

Suffixes: T elements (tokens), N rows (trajectories or groups). Row keys are any integers in any order.
"""

import torch
from torch import Tensor

# exp(20) is finite in every float type that we train in, and far outside any clip range.
LOG_RATIO_BOUND = 20.0


def require_vectors(**named: Tensor) -> None:
    """Raise ValueError unless all tensors are vectors of the same length."""
    shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        *most, last = [f"{name} {shape}" for name, shape in shapes.items()]
        raise ValueError(f"{' and '.join(filter(None, (', '.join(most), last)))} must be vectors of the same length")


def index_rows(key_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sorted keys, the row index of each element, and the number of elements per row."""
    key_N, index_T, count_N = torch.unique(key_T, return_inverse=True, return_counts=True)
    return key_N, index_T, count_N


def row_sums(values_T: Tensor, index_T: Tensor, count_N: Tensor) -> Tensor:
    return values_T.new_zeros(count_N.shape).index_add(0, index_T, values_T)


def row_means(values_T: Tensor, index_T: Tensor, count_N: Tensor) -> Tensor:
    return row_sums(values_T, index_T, count_N) / count_N


def bounded_exp(log_ratio_T: Tensor) -> Tensor:
    """Return exp() of the clamped log ratio, which is always finite."""
    return log_ratio_T.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
