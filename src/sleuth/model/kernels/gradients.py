"""Triton kernels backwards through norm and gated activation, which also make again what forward passes did not keep.

What is made again has the bits it had: it comes from the very functions of the forward kernels.

Suffixes: N packed tokens, W model width, I intermediate width, P programs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sleuth.model.kernels.device import programs
from sleuth.model.kernels.pointwise import COLUMNS, activated, normed, row_warps


@triton.jit(do_not_specialize=["rows"])
def _norm(
    gradient, states, weight, passed, to_states, again, partial, eps, rows, width: tl.constexpr, WIDTH: tl.constexpr
):
    dtype: tl.constexpr = states.dtype.element_ty
    program, count = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, WIDTH)
    inside = column < width
    own = tl.load(weight + column, inside, 0.0).to(tl.float32)
    place = program.to(tl.int64) * width + column
    to_weight = tl.zeros((WIDTH,), tl.float32)
    for _ in range(program, rows, count):
        x = tl.load(states + place, inside, 0.0).to(tl.float32)
        upstream = tl.load(gradient + place, inside, 0.0).to(tl.float32)
        scale, scaled = normed(x, own, eps, width, dtype)
        if again is not None:
            tl.store(again + place, scaled, inside)
        unit, weighed = x * scale, upstream * own
        to_x = scale * (weighed - unit * (tl.sum(weighed * unit, 0) / width))
        if passed is not None:
            to_x += tl.load(passed + place, inside, 0.0).to(tl.float32)
        tl.store(to_states + place, to_x.to(dtype), inside)
        to_weight += upstream * unit
        place += count.to(tl.int64) * width
    if partial is not None:
        tl.store(partial + program * width + column, to_weight, inside)


@triton.jit
def _silu_mul(both, gradient, to_both, product, width: tl.constexpr, COLUMNS: tl.constexpr):
    dtype: tl.constexpr = both.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    left, right = row * (2 * width) + column, row * (2 * width) + width + column
    gate = tl.load(both + left, inside, 0.0).to(tl.float32)
    up = tl.load(both + right, inside, 0.0).to(tl.float32)
    upstream = tl.load(gradient + row * width + column, inside, 0.0).to(tl.float32)
    active = activated(gate, dtype).to(tl.float32)
    if product is not None:
        tl.store(product + row * width + column, (active * up).to(dtype), inside)
    share = 1.0 / (1.0 + tl.exp(-gate))
    tl.store(to_both + left, (upstream * up * share * (1.0 + gate * (1.0 - share))).to(dtype), inside)
    tl.store(to_both + right, (upstream * active).to(dtype), inside)


def norm(
    gradient_NW: Tensor, states_NW: Tensor, weight_W: Tensor, eps: float, passed_NW: Tensor | None = None,
    *, weight: bool = True, again: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of the states and, where `weight` asks for it, of the weight; with `again`, the normed states too.

    `passed_NW` is what reached the states by the way around the norm, and is added.
    """
    rows, width = states_NW.shape
    count, padded = programs(rows, states_NW.device), triton.next_power_of_2(width)
    to_states_NW = torch.empty_like(states_NW)
    again_NW = torch.empty_like(states_NW) if again else None
    partial_PW = torch.empty(count, width, dtype=torch.float32, device=states_NW.device) if weight else None
    if rows:
        _norm[(count,)](
            gradient_NW, states_NW, weight_W, passed_NW, to_states_NW, again_NW, partial_PW, eps, rows, width, padded,
            num_warps=row_warps(padded), enable_fp_fusion=False,
        )  # fmt: skip
    return to_states_NW, None if partial_PW is None else partial_PW.sum(0).to(weight_W.dtype), again_NW


def silu_mul(both_N2I: Tensor, gradient_NI: Tensor, *, again: bool) -> tuple[Tensor, Tensor | None]:
    """Gradient of gate and up side by side; with `again`, also the product that the forward pass made of them."""
    rows, width = gradient_NI.shape
    to_both_N2I = torch.empty_like(both_N2I)
    product_NI = torch.empty_like(gradient_NI) if again else None
    if rows:
        _silu_mul[(rows, triton.cdiv(width, COLUMNS))](
            both_N2I, gradient_NI, to_both_N2I, product_NI, width, COLUMNS, num_warps=4, enable_fp_fusion=False
        )
    return to_both_N2I, product_NI
