"""The gradient of a weight matrix, summed over tokens in as many parts as keep a GPU busy.

The products of the forward pass are never summed in parts (`exactness`): their bits must not depend on how many tokens
there are. Nothing depends so on the bits of a gradient, and a small matrix with many tokens has few tiles to compute.

Suffixes: N packed tokens, P parts, X outputs, W inputs.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sleuth.model.kernels.device import processors

TILE = 128  # rows and columns that one processor computes
LEAST = 2048  # tokens of a part
Measured = Mapping[tuple[int, int], Sequence[tuple[int, int]]]
# Outputs and inputs of matrices whose best parts were measured: from how many tokens on, how many parts.
PARTS: Measured = {
    (960, 576): ((8192, 1), (16384, 4)),
    (576, 576): ((8192, 4), (32768, 8)),
    (576, 1536): ((8192, 1), (32768, 4)),
    (1152, 896): ((8192, 1), (16384, 2)),
    (896, 896): ((8192, 1), (32768, 3)),
}


def weight_gradient(upstream_NX: Tensor, states_NW: Tensor, parts: int | None = None) -> Tensor:
    """The gradient of the weight that makes `upstream_NX`'s tensor of `states_NW`, in their dtype."""
    parts = parts_for(upstream_NX, states_NW) if parts is None else parts
    if parts == 1:
        return upstream_NX.t() @ states_NW
    from sleuth.model.kernels.sums import summed

    each, left = divmod(len(states_NW), parts)
    shape = upstream_NX.shape[1], states_NW.shape[1]
    sums_PXW = torch.empty(parts + bool(left), *shape, dtype=torch.float32, device=states_NW.device)
    upstream_PNX, states_PNW = (
        states[: parts * each].unflatten(0, (parts, each)) for states in (upstream_NX, states_NW)
    )
    _product(upstream_PNX.transpose(1, 2), states_PNW, sums_PXW[:parts])
    if left:
        _product(upstream_NX[None, -left:].transpose(1, 2), states_NW[None, -left:], sums_PXW[parts:])
    return summed(sums_PXW.flatten(1), states_NW.dtype).view(shape)


def parts_for(upstream_NX: Tensor, states_NW: Tensor, measured: Measured = PARTS) -> int:
    """How many parts: as measured, else one where tiles of the whole fill the processors or there are few tokens."""
    tokens, rows, columns = len(states_NW), upstream_NX.shape[1], states_NW.shape[1]
    for least, parts in reversed(measured.get((rows, columns), ())):
        if tokens >= least:
            return parts
    tiles = -(-rows // TILE) * -(-columns // TILE)
    return max(1, min(processors(states_NW.device) // tiles, tokens // LEAST))


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Left in fp32, as the parts are still to be added."""
    if left.is_cuda and left.dtype != torch.float32:
        torch.bmm(left, right, out_dtype=torch.float32, out=out)
    else:
        torch.bmm(left.float(), right.float(), out=out)
