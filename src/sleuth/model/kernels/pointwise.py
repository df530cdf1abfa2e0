"""Triton kernels for what stands between the matrix products of a decoder, in the engine and in training alike.

Each rounds where transformers' modules round: to the model's dtype after every operation, with no multiplication and
addition fused. Two kernels that begin from the same bits end with the same bits: a difference in the last one would be
rounded up by every operation after it, to as much as half precision allows.

Suffixes: N packed tokens, W model width, I intermediate width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 2048  # that one program multiplies


@triton.jit
def normed(x, weight, eps, width: tl.constexpr, dtype: tl.constexpr):
    """The factor that gives a row in fp32 a mean square of 1, and the weight times the row so scaled, both rounded."""
    # Squares of half precision summed in fp64 are exact, in whatever order.
    square = tl.sum((x * x).to(tl.float64), 0) / width
    scale = tl.rsqrt(square.to(tl.float32) + eps)
    return scale, (weight * (x * scale).to(dtype).to(tl.float32)).to(dtype)


@triton.jit
def _add_norm(delta, residual, total, weight, out, eps, width: tl.constexpr, WIDTH: tl.constexpr):
    dtype: tl.constexpr = residual.dtype.element_ty
    column = tl.arange(0, WIDTH)
    inside = column < width
    place = tl.program_id(0).to(tl.int64) * width + column
    x = tl.load(residual + place, inside, 0.0).to(tl.float32)
    if delta is not None:
        x = (x + tl.load(delta + place, inside, 0.0).to(tl.float32)).to(dtype).to(tl.float32)
        tl.store(total + place, x.to(dtype), inside)
    _, scaled = normed(x, tl.load(weight + column, inside, 0.0).to(tl.float32), eps, width, dtype)
    tl.store(out + place, scaled, inside)


@triton.jit
def activated(gate, dtype: tl.constexpr):
    return tl.div_rn(gate, 1.0 + tl.exp(-gate)).to(dtype)


@triton.jit
def _silu(states, out, count, COLUMNS: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    gate = tl.load(states + place, place < count, 0.0).to(tl.float32)
    tl.store(out + place, activated(gate, states.dtype.element_ty), place < count)


@triton.jit
def _silu_mul(both, out, width: tl.constexpr, COLUMNS: tl.constexpr):
    dtype: tl.constexpr = both.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    gate = tl.load(both + row * (2 * width) + column, inside, 0.0).to(tl.float32)
    up = tl.load(both + row * (2 * width) + width + column, inside, 0.0).to(tl.float32)
    product = activated(gate, dtype).to(tl.float32) * up
    tl.store(out + row * width + column, product.to(dtype), inside)


def add_norm(
    delta_NW: Tensor | None, residual_NW: Tensor, weight_W: Tensor, eps: float, out_NW: Tensor | None = None,
    *, total_NW: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """RMSNorm of the residual stream, to which `delta_NW` is added first: in place, or into `total_NW`."""
    rows, width = residual_NW.shape
    out_NW = torch.empty_like(residual_NW) if out_NW is None else out_NW
    if not rows:
        return out_NW
    padded = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        delta_NW, residual_NW, residual_NW if total_NW is None else total_NW, weight_W, out_NW, eps, width, padded,
        num_warps=row_warps(padded), enable_fp_fusion=False,
    )  # fmt: skip
    return out_NW


def row_warps(padded: int) -> int:
    """Warps of a program that norms one row."""
    return min(8, max(1, padded // 512))


def silu(states: Tensor) -> Tensor:
    """x * sigmoid(x) of each number of a contiguous tensor."""
    out = torch.empty_like(states)
    _silu[(triton.cdiv(states.numel(), COLUMNS),)](
        states, out, states.numel(), COLUMNS, num_warps=4, enable_fp_fusion=False
    )
    return out


def silu_mul(both_N2I: Tensor) -> Tensor:
    """silu of the first half of each row times its second half."""
    rows, width = both_N2I.shape[0], both_N2I.shape[1] // 2
    out_NI = torch.empty(rows, width, dtype=both_N2I.dtype, device=both_N2I.device)
    _silu_mul[(rows, triton.cdiv(width, COLUMNS))](
        both_N2I, out_NI, width, COLUMNS, num_warps=4, enable_fp_fusion=False
    )
    return out_NI
