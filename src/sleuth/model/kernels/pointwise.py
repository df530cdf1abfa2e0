"""Triton kernels between the matrix products of a decoder layer, shared by engine and trainer, with their gradients.

Each rounds exactly where the transformers modules round: to the model's dtype after every operation, without fused
multiply-add. Kernels that start from the same bits end with the same bits. Backward kernels also recompute what the
forward pass did not keep, with the forward kernels' own functions, hence the same bits.

Suffixes: N packed tokens, W model width, I intermediate width, P programs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sleuth.model.kernels.reductions import sm_count, sum_rows

ELEMENTS = 1024  # per program
MIN_COLUMNS = 128  # of a tile that divides its rows evenly, if possible


@dataclass(frozen=True, slots=True)
class NormPlan:
    """Launch parameters of the RMSNorm gradient."""

    columns: int  # per warp
    stages: int  # rows of a program in flight
    warps: int  # per multiprocessor


NORM_PLAN = NormPlan(512, 3, 8)  # fastest of several dozen on an H200, for rows of 576 and 2,048


@triton.jit
def sum_of_squares(x):
    # Squares of half-precision elements, summed in fp64, are exact in any order.
    return tl.sum((x * x).to(tl.float64), 0)


@triton.jit
def inverse_rms(squares, eps, width: tl.constexpr):
    """1 / RMS, in fp32."""
    return tl.rsqrt((squares / width).to(tl.float32) + eps)


@triton.jit
def scale_and_weight(x, weight, scale, dtype: tl.constexpr):
    """weight * (x * scale), rounded after each product."""
    return (weight * (x * scale).to(dtype).to(tl.float32)).to(dtype)


@triton.jit
def _add_rms_norm(delta, residual, total, weight, out, eps, width: tl.constexpr, WIDTH: tl.constexpr):
    dtype: tl.constexpr = residual.dtype.element_ty
    column = tl.arange(0, WIDTH)
    inside = column < width
    place = tl.program_id(0).to(tl.int64) * width + column
    x = tl.load(residual + place, inside, 0.0).to(tl.float32)
    if delta is not None:
        x = (x + tl.load(delta + place, inside, 0.0).to(tl.float32)).to(dtype).to(tl.float32)
        tl.store(total + place, x.to(dtype), inside)
    own = tl.load(weight + column, inside, 0.0).to(tl.float32)
    tl.store(out + place, scale_and_weight(x, own, inverse_rms(sum_of_squares(x), eps, width), dtype), inside)


@triton.jit
def silu_activation(gate, dtype: tl.constexpr):
    return tl.div_rn(gate, 1.0 + tl.exp(-gate)).to(dtype)


@triton.jit
def _silu(states, out, count, ELEMENTS: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    gate = tl.load(states + place, place < count, 0.0).to(tl.float32)
    tl.store(out + place, silu_activation(gate, states.dtype.element_ty), place < count)


@triton.jit
def gate_tile(rows, width: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return a tile's offsets in rows of `width`, its offsets in the gate half of rows of 2 * `width`, and its mask."""
    across: tl.constexpr = (width + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    row = (program // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = program % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return row * width + column, row * (2 * width) + column, (row < rows) & (column < width)


@triton.jit(do_not_specialize=["rows"])
def _silu_mul(both, out, rows, width: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    dtype: tl.constexpr = both.dtype.element_ty
    place, left, inside = gate_tile(rows, width, ROWS, COLUMNS)
    gate = tl.load(both + left, inside, 0.0).to(tl.float32)
    up = tl.load(both + left + width, inside, 0.0).to(tl.float32)
    product = silu_activation(gate, dtype).to(tl.float32) * up
    tl.store(out + place, product.to(dtype), inside)


@triton.jit
def _read(states, place, inside):
    """Load as fp32; 0 for an absent tensor."""
    return 0.0 if states is None else tl.load(states + place, inside, 0.0).to(tl.float32)


@triton.jit
def _send(x, upstream, passed, own, scale, mean, to_states, again, place, inside, dtype: tl.constexpr):
    """Store the gradient of a block of columns and optionally its norm; return its part of the weight's gradient."""
    around = _read(passed, place, inside)
    if again is not None:
        tl.store(again + place, scale_and_weight(x, own, scale, dtype), inside)
    unit = x * scale
    to_x = scale * (upstream * own - unit * mean) + around
    tl.store(to_states + place, to_x.to(dtype), inside)
    return upstream * unit


# A width of 576 is processed as 512 + 64: padded to 1024, nearly half of the work would be wasted.
@triton.jit(do_not_specialize=["rows"])
def _rms_norm_backward(
    gradient, states, weight, passed, to_states, again, partial, eps, rows,
    width: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = states.dtype.element_ty
    program, count = tl.program_id(0), tl.num_programs(0)
    stride = tl.full((), width, tl.int64)
    column = tl.arange(0, MAIN)
    inside = column < width
    own, to_weight = _read(weight, column, inside), tl.zeros((MAIN,), tl.float32)
    if REST > 0:
        beyond = MAIN + tl.arange(0, REST)
        rest_inside = beyond < width
        rest_own, rest_to_weight = _read(weight, beyond, rest_inside), tl.zeros((REST,), tl.float32)
    for row in tl.range(program, rows, count, num_stages=STAGES):
        first = row * stride
        place = first + column
        x, upstream = _read(states, place, inside), _read(gradient, place, inside)
        if REST > 0:
            rest_place = first + beyond
            rest_x, rest_upstream = _read(states, rest_place, rest_inside), _read(gradient, rest_place, rest_inside)
        squares, along = sum_of_squares(x), tl.sum(upstream * own * x, 0)
        if REST > 0:
            squares += sum_of_squares(rest_x)
            along += tl.sum(rest_upstream * rest_own * rest_x, 0)
        scale = inverse_rms(squares, eps, width)
        mean = scale * along / width
        to_weight += _send(x, upstream, passed, own, scale, mean, to_states, again, place, inside, dtype)
        if REST > 0:
            rest_to_weight += _send(
                rest_x, rest_upstream, passed, rest_own, scale, mean, to_states, again, rest_place, rest_inside,
                dtype,
            )  # fmt: skip
    if partial is not None:
        left = partial + program * stride
        tl.store(left + column, to_weight, inside)
        if REST > 0:
            tl.store(left + beyond, rest_to_weight, rest_inside)


@triton.jit(do_not_specialize=["rows"])
def _silu_mul_backward(
    both, gradient, to_both, product, rows, width: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    dtype: tl.constexpr = both.dtype.element_ty
    place, left, inside = gate_tile(rows, width, ROWS, COLUMNS)
    gate, up = _read(both, left, inside), _read(both, left + width, inside)
    upstream = _read(gradient, place, inside)
    active = silu_activation(gate, dtype).to(tl.float32)
    if product is not None:
        tl.store(product + place, (active * up).to(dtype), inside)
    share = 1.0 / (1.0 + tl.exp(-gate))
    tl.store(to_both + left, (upstream * up * share * (1.0 + gate * (1.0 - share))).to(dtype), inside)
    tl.store(to_both + left + width, (upstream * active).to(dtype), inside)


def add_rms_norm(
    delta_NW: Tensor | None, residual_NW: Tensor, weight_W: Tensor, eps: float, out_NW: Tensor | None = None,
    *, total_NW: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """RMSNorm of the residual stream after adding `delta_NW` to it, in place or into `total_NW`."""
    rows, width = residual_NW.shape
    out_NW = torch.empty_like(residual_NW) if out_NW is None else out_NW
    if not rows:
        return out_NW
    padded = triton.next_power_of_2(width)
    _add_rms_norm[(rows,)](
        delta_NW, residual_NW, residual_NW if total_NW is None else total_NW, weight_W, out_NW, eps, width, padded,
        num_warps=min(8, max(1, padded // 512)), enable_fp_fusion=False,
    )  # fmt: skip
    return out_NW


def tile(width: int, elements: int = ELEMENTS) -> tuple[int, int]:
    """Rows and columns of one program's tile; columns divide the width evenly if possible."""
    columns = width & -width
    if columns < MIN_COLUMNS:
        columns = triton.next_power_of_2(width)
    return max(1, elements // columns), min(elements, columns)


def tile_grid(rows: int, width: int, tile: tuple[int, int]) -> tuple[int]:
    return (triton.cdiv(rows, tile[0]) * triton.cdiv(width, tile[1]),)


def silu(states: Tensor) -> Tensor:
    out = torch.empty_like(states)
    _silu[(triton.cdiv(states.numel(), ELEMENTS),)](
        states, out, states.numel(), ELEMENTS, num_warps=4, enable_fp_fusion=False
    )
    return out


def silu_mul(both_N2I: Tensor, elements: int = ELEMENTS) -> Tensor:
    """silu(gate) * up, for rows that hold gate and up side by side."""
    rows, width = both_N2I.shape[0], both_N2I.shape[1] // 2
    out_NI = torch.empty(rows, width, dtype=both_N2I.dtype, device=both_N2I.device)
    own = tile(width, elements)
    if rows:
        _silu_mul[tile_grid(rows, width, own)](both_N2I, out_NI, rows, width, *own, num_warps=4, enable_fp_fusion=False)
    return out_NI


def rms_norm_backward(
    gradient_NW: Tensor, states_NW: Tensor, weight_W: Tensor, eps: float, passed_NW: Tensor | None = None,
    *, weight: bool = True, recompute: bool = False, plan: NormPlan = NORM_PLAN,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of the states and optionally of the weight; with `recompute`, also the normed states.

    `passed_NW`, the gradient that bypasses the norm, is added to that of the states.
    """
    rows, width = states_NW.shape
    main, rest = split_width(width)
    warps = min(8, max(1, main // plan.columns))
    count = min(rows, max(1, plan.warps // warps) * sm_count(states_NW.device))
    to_states_NW = torch.empty_like(states_NW)
    recomputed_NW = torch.empty_like(states_NW) if recompute else None
    partial_PW = torch.empty(count, width, dtype=torch.float32, device=states_NW.device) if weight else None
    if rows:
        _rms_norm_backward[(count,)](
            gradient_NW, states_NW, weight_W, passed_NW, to_states_NW, recomputed_NW, partial_PW, eps, rows, width,
            main, rest, plan.stages, num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
    return to_states_NW, None if partial_PW is None else sum_rows(partial_PW, weight_W.dtype), recomputed_NW


def split_width(width: int) -> tuple[int, int]:
    """Split a row into one or two powers of two, whichever pads less; the second is 0 if unused."""
    whole: int = triton.next_power_of_2(width)
    main = whole if whole == width else whole // 2
    rest = triton.next_power_of_2(width - main) if width > main else 0
    return (main, rest) if main + rest < whole else (whole, 0)


def silu_mul_backward(
    both_N2I: Tensor, gradient_NI: Tensor, *, recompute: bool, elements: int = ELEMENTS
) -> tuple[Tensor, Tensor | None]:
    """Gradient of gate and up side by side; with `recompute`, also their product."""
    rows, width = gradient_NI.shape
    to_both_N2I = torch.empty_like(both_N2I)
    product_NI = torch.empty_like(gradient_NI) if recompute else None
    own = tile(width, elements)
    if rows:
        _silu_mul_backward[tile_grid(rows, width, own)](
            both_N2I, gradient_NI, to_both_N2I, product_NI, rows, width, *own, num_warps=4, enable_fp_fusion=False
        )
    return to_both_N2I, product_NI
