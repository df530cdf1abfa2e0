"""The gradient of a weight matrix, summed over tokens in as many parts as keep a GPU busy.

The products of the forward pass are never summed in parts (`exactness`): their bits must not depend on how many tokens
there are. Nothing depends so on the bits of a gradient, and a small matrix with many tokens has few tiles to compute.

Suffixes: N packed tokens, P parts, X outputs, W inputs.
"""

import torch
from torch import Tensor

from sleuth.model.kernels.device import processors

TILE = 128  # rows and columns that one processor computes
LEAST = 2048  # tokens of a part


def weight_gradient(upstream_NX: Tensor, states_NW: Tensor, parts: int | None = None) -> Tensor:
    """The gradient of the weight that makes `upstream_NX`'s tensor of `states_NW`, in their dtype."""
    parts = parts_for(upstream_NX, states_NW) if parts is None else parts
    if parts == 1:
        return upstream_NX.t() @ states_NW
    each = len(states_NW) // parts
    upstream_PNX, states_PNW = (
        states[: parts * each].unflatten(0, (parts, each)) for states in (upstream_NX, states_NW)
    )
    total_XW = _product(upstream_PNX.transpose(1, 2), states_PNW).sum(0)
    if parts * each < len(states_NW):
        left = slice(parts * each, None)
        total_XW += upstream_NX[left].t() @ states_NW[left]
    return total_XW.to(states_NW.dtype)


def parts_for(upstream_NX: Tensor, states_NW: Tensor) -> int:
    """How many parts: one where the tiles of the whole already fill the processors, or where there are few tokens."""
    tokens, rows, columns = len(states_NW), upstream_NX.shape[1], states_NW.shape[1]
    tiles = -(-rows // TILE) * -(-columns // TILE)
    return max(1, min(processors(states_NW.device) // tiles, tokens // LEAST))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Left in fp32, as the parts are still to be added."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())
