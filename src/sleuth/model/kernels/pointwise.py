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

NUMBERS = 1024  # that one program multiplies
NARROWEST = 128  # columns of a tile that divides its rows, where there is one so wide


@triton.jit
def squared(x):
    """The sum of squares of a row."""
    # Squares of half precision summed in fp64 are exact, in whatever order.
    return tl.sum((x * x).to(tl.float64), 0)


@triton.jit
def root(squares, eps, width: tl.constexpr):
    """The factor that gives a row of this sum of squares a mean square of 1, in fp32."""
    return tl.rsqrt((squares / width).to(tl.float32) + eps)


@triton.jit
def weighed(x, weight, scale, dtype: tl.constexpr):
    """The weight times the scaled row, both rounded."""
    return (weight * (x * scale).to(dtype).to(tl.float32)).to(dtype)


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
    own = tl.load(weight + column, inside, 0.0).to(tl.float32)
    tl.store(out + place, weighed(x, own, root(squared(x), eps, width), dtype), inside)


@triton.jit
def activated(gate, dtype: tl.constexpr):
    return tl.div_rn(gate, 1.0 + tl.exp(-gate)).to(dtype)


@triton.jit
def _silu(states, out, count, NUMBERS: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    gate = tl.load(states + place, place < count, 0.0).to(tl.float32)
    tl.store(out + place, activated(gate, states.dtype.element_ty), place < count)


@triton.jit
def halves(rows, width: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where a program's tile lies in rows of the width, and in the first half of rows twice as wide; what is inside."""
    across: tl.constexpr = (width + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    row = (program // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = program % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return row * width + column, row * (2 * width) + column, (row < rows) & (column < width)


@triton.jit(do_not_specialize=["rows"])
def _silu_mul(both, out, rows, width: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    dtype: tl.constexpr = both.dtype.element_ty
    place, left, inside = halves(rows, width, ROWS, COLUMNS)
    gate = tl.load(both + left, inside, 0.0).to(tl.float32)
    up = tl.load(both + left + width, inside, 0.0).to(tl.float32)
    product = activated(gate, dtype).to(tl.float32) * up
    tl.store(out + place, product.to(dtype), inside)


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


def tile(width: int, numbers: int = NUMBERS) -> tuple[int, int]:
    """Rows and columns that one program takes of rows this wide: such that columns divide them, where they can."""
    columns = width & -width
    if columns < NARROWEST:
        columns = triton.next_power_of_2(width)
    return max(1, numbers // columns), min(numbers, columns)


def tiles(rows: int, width: int, tile: tuple[int, int]) -> tuple[int]:
    """The grid of programs that take all rows."""
    return (triton.cdiv(rows, tile[0]) * triton.cdiv(width, tile[1]),)


def silu(states: Tensor) -> Tensor:
    """x * sigmoid(x) of each number of a contiguous tensor."""
    out = torch.empty_like(states)
    _silu[(triton.cdiv(states.numel(), NUMBERS),)](
        states, out, states.numel(), NUMBERS, num_warps=4, enable_fp_fusion=False
    )
    return out


def silu_mul(both_N2I: Tensor, numbers: int = NUMBERS) -> Tensor:
    """silu of the first half of each row times its second half."""
    rows, width = both_N2I.shape[0], both_N2I.shape[1] // 2
    out_NI = torch.empty(rows, width, dtype=both_N2I.dtype, device=both_N2I.device)
    own = tile(width, numbers)
    if rows:
        _silu_mul[tiles(rows, width, own)](both_N2I, out_NI, rows, width, *own, num_warps=4, enable_fp_fusion=False)
    return out_NI
