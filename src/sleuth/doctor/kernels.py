"""A small Triton kernel with a result that is known: whether kernels can be compiled and run here."""

import torch
import triton
import triton.language as tl

SIDE = 16


@triton.jit
def _product(left, right, out, SIDE: tl.constexpr):
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    place = row * SIDE + column
    product = tl.dot(tl.load(left + place), tl.load(right + place), input_precision="ieee")
    tl.store(out + place, product)


def error(device: torch.device) -> float:
    """The largest error of a matrix product made by a kernel, of whole numbers, which allow of none."""
    left = torch.arange(SIDE * SIDE, dtype=torch.float32, device=device).view(SIDE, SIDE)
    right, out = left.t().contiguous(), torch.empty_like(left)
    _product[(1,)](left, right, out, SIDE=SIDE)
    exact = left.cpu().double() @ right.cpu().double()
    return float((out.cpu().double() - exact).abs().max())
