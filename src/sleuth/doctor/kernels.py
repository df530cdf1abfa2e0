"""A small Triton kernel with a known result, to test whether kernels compile and run."""

import torch
import triton
import triton.language as tl

SIDE = 16


@triton.jit
def _matmul(left, right, out, SIDE: tl.constexpr):
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    place = row * SIDE + column
    product = tl.dot(tl.load(left + place), tl.load(right + place), input_precision="ieee")
    tl.store(out + place, product)


def matmul_error(device: torch.device) -> float:
    """The largest error of a matrix product of integers; 0 if the kernel works."""
    left = torch.arange(SIDE * SIDE, dtype=torch.float32, device=device).view(SIDE, SIDE)
    right, out = left.t().contiguous(), torch.empty_like(left)
    _matmul[(1,)](left, right, out, SIDE=SIDE)
    exact = left.cpu().double() @ right.cpu().double()
    return float((out.cpu().double() - exact).abs().max())
