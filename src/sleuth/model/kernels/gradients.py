"""Triton kernels backwards through norm and gated activation, which also make again what forward passes did not keep.

What is made again has the bits it had: it comes from the very functions of the forward kernels.

Suffixes: N packed tokens, W model width, I intermediate width, P programs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sleuth.model.kernels.device import processors
from sleuth.model.kernels.pointwise import NUMBERS, activated, halves, root, squared, tile, tiles, weighed
from sleuth.model.kernels.sums import summed


@dataclass(frozen=True, slots=True)
class Plan:
    """How a norm's rows are shared out."""

    columns: int  # of a row that a warp takes
    stages: int  # rows of a program under way at once
    warps: int  # of a multiprocessor


NORM = Plan(512, 3, 8)  # the fastest of some dozens on an H200, for rows of 576 and of 2,048


@triton.jit
def _read(states, place, inside):
    """Numbers in fp32; 0 of what is not there."""
    return 0.0 if states is None else tl.load(states + place, inside, 0.0).to(tl.float32)


@triton.jit
def _send(x, upstream, passed, own, scale, mean, to_states, again, place, inside, dtype: tl.constexpr):
    """Stores the gradient of some columns and, where it is wanted, their norm; what they give the weight."""
    around = _read(passed, place, inside)
    if again is not None:
        tl.store(again + place, weighed(x, own, scale, dtype), inside)
    unit = x * scale
    to_x = scale * (upstream * own - unit * mean) + around
    tl.store(to_states + place, to_x.to(dtype), inside)
    return upstream * unit


# A width such as 576 is taken in two parts, 512 and 64: as one it would be 1024, and nearly half of the work in vain.
@triton.jit(do_not_specialize=["rows"])
def _norm(
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
        squares, along = squared(x), tl.sum(upstream * own * x, 0)
        if REST > 0:
            squares += squared(rest_x)
            along += tl.sum(rest_upstream * rest_own * rest_x, 0)
        scale = root(squares, eps, width)
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
def _silu_mul(both, gradient, to_both, product, rows, width: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    dtype: tl.constexpr = both.dtype.element_ty
    place, left, inside = halves(rows, width, ROWS, COLUMNS)
    gate, up = _read(both, left, inside), _read(both, left + width, inside)
    upstream = _read(gradient, place, inside)
    active = activated(gate, dtype).to(tl.float32)
    if product is not None:
        tl.store(product + place, (active * up).to(dtype), inside)
    share = 1.0 / (1.0 + tl.exp(-gate))
    tl.store(to_both + left, (upstream * up * share * (1.0 + gate * (1.0 - share))).to(dtype), inside)
    tl.store(to_both + left + width, (upstream * active).to(dtype), inside)


def norm(
    gradient_NW: Tensor, states_NW: Tensor, weight_W: Tensor, eps: float, passed_NW: Tensor | None = None,
    *, weight: bool = True, again: bool = False, plan: Plan = NORM,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of the states and, where `weight` asks for it, of the weight; with `again`, the normed states too.

    `passed_NW` is what reached the states by the way around the norm, and is added.
    """
    rows, width = states_NW.shape
    main, rest = pieces(width)
    warps = min(8, max(1, main // plan.columns))
    count = min(rows, max(1, plan.warps // warps) * processors(states_NW.device))
    to_states_NW = torch.empty_like(states_NW)
    again_NW = torch.empty_like(states_NW) if again else None
    partial_PW = torch.empty(count, width, dtype=torch.float32, device=states_NW.device) if weight else None
    if rows:
        _norm[(count,)](
            gradient_NW, states_NW, weight_W, passed_NW, to_states_NW, again_NW, partial_PW, eps, rows, width,
            main, rest, plan.stages, num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
    return to_states_NW, None if partial_PW is None else summed(partial_PW, weight_W.dtype), again_NW


def pieces(width: int) -> tuple[int, int]:
    """Powers of two that together hold a row: the second is 0 where two would hold no fewer numbers than one."""
    whole: int = triton.next_power_of_2(width)
    main = whole if whole == width else whole // 2
    rest = triton.next_power_of_2(width - main) if width > main else 0
    return (main, rest) if main + rest < whole else (whole, 0)


def silu_mul(
    both_N2I: Tensor, gradient_NI: Tensor, *, again: bool, numbers: int = NUMBERS
) -> tuple[Tensor, Tensor | None]:
    """Gradient of gate and up side by side; with `again`, also the product that the forward pass made of them."""
    rows, width = gradient_NI.shape
    to_both_N2I = torch.empty_like(both_N2I)
    product_NI = torch.empty_like(gradient_NI) if again else None
    own = tile(width, numbers)
    if rows:
        _silu_mul[tiles(rows, width, own)](
            both_N2I, gradient_NI, to_both_N2I, product_NI, rows, width, *own, num_warps=4, enable_fp_fusion=False
        )
    return to_both_N2I, product_NI
