"""Triton kernels for the gradients of packed attention: of queries, then of keys and values.

One program sums each gradient in a fixed order without atomics, so results are deterministic. The heads of a group are
summed in the program of their key head, so that keys are never repeated.

Suffixes: N packed tokens, R1 rows (sequences) plus one, T tiles, H heads, K key heads, D head width; in kernels
S tokens of a block, of which Q queries and C keys.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from sleuth.model.kernels.attention import LOG2_E, MIN_DOT

if TYPE_CHECKING:
    from sleuth.model.attention import Tiles


@dataclass(frozen=True, slots=True)
class Plan:
    """Queries and keys per block, warps, and pipeline stages."""

    queries: int
    keys: int
    warps: int
    stages: int


# By maximum head width: blocks in flight must fit shared memory.
TO_QUERIES = ((64, Plan(128, 64, 8, 3)), (128, Plan(64, 64, 4, 2)), (256, Plan(64, 32, 8, 1)))
TO_KEYS = ((64, Plan(128, 64, 4, 2)), (128, Plan(32, 64, 4, 3)), (256, Plan(32, 64, 8, 1)))


def plan_for(plans: tuple[tuple[int, Plan], ...], width: int) -> Plan:
    return next(plan for most, plan in plans if width <= most)


@triton.jit
def _block(base, first, end, stride, SIZE: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr):
    """Load a block of one head's tokens; zeros from `end` on, unless the block is known to be full."""
    token_S = first + tl.arange(0, SIZE)
    column_D = tl.arange(0, WIDTH)
    place_SD = base + token_S[:, None] * stride + column_D[None, :]
    if WHOLE and D == WIDTH:
        block_SD = tl.load(place_SD)
    else:
        block_SD = tl.load(place_SD, (token_S < end)[:, None] & (column_D < D)[None, :], 0.0)
    return block_SD


@triton.jit
def _step_of_queries(
    sum_QD, query_QD, upstream_QD, log_Q, delta_Q, at_Q, keys, values, first, length, scale, key_stride, value_stride,
    KEYS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    key_CD = _block(keys, first, length, key_stride, KEYS, D, WIDTH, not CAUSAL)
    value_CD = _block(values, first, length, value_stride, KEYS, D, WIDTH, not CAUSAL)
    score_QC = tl.dot(query_QD, key_CD.T, input_precision="ieee") * scale
    weight_QC = tl.exp2(score_QC - log_Q[:, None])
    if CAUSAL:
        weight_QC = tl.where((first + tl.arange(0, KEYS))[None, :] <= at_Q[:, None], weight_QC, 0.0)
    to_weight_QC = tl.dot(upstream_QD, value_CD.T, input_precision="ieee")
    to_score_QC = weight_QC * (to_weight_QC - delta_Q[:, None])
    return tl.dot(to_score_QC.to(key_CD.dtype), key_CD, sum_QD, input_precision="ieee")


# These vary per batch: recompilation for values divisible by 16 would stall a step.
@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["starts", "row", "position"])
def _to_queries(
    query, key, value, out, upstream, logs, delta, to_query, starts, row, position, scale, tokens,
    query_stride, query_head_stride, key_stride, key_head_stride, value_stride, value_head_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    # The tile with the most keys before it comes last, and starts first.
    tile, head = tl.num_programs(0) // HEADS - 1 - tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    sequence, before = tl.load(row + tile), tl.load(position + tile)
    start = tl.load(starts + sequence).to(tl.int64)
    length = (tl.load(starts + sequence + 1) - start).to(tl.int32)
    at_Q = before + tl.arange(0, QUERIES)
    queries = query + start * query_stride + head * query_head_stride
    query_QD = _block(queries, before, length, query_stride, QUERIES, D, WIDTH, False)
    own = start * HEADS * D + head * D  # outputs and their gradients are contiguous
    upstream_QD = _block(upstream + own, before, length, HEADS * D, QUERIES, D, WIDTH, False)
    out_QD = _block(out + own, before, length, HEADS * D, QUERIES, D, WIDTH, False)
    delta_Q = tl.sum(upstream_QD.to(tl.float32) * out_QD.to(tl.float32), 1)
    place_Q = head.to(tl.int64) * tokens + start + at_Q
    tl.store(delta + place_Q, delta_Q, at_Q < length)
    # Infinite where there is no query, so that its weights are 0.
    log_Q = tl.load(logs + place_Q, at_Q < length, float("inf")) * LOG2_E
    keys = key + start * key_stride + head // GROUP * key_head_stride
    values = value + start * value_stride + head // GROUP * value_head_stride
    sum_QD = tl.zeros((QUERIES, WIDTH), tl.float32)
    whole = before // KEYS * KEYS
    for first in range(0, whole, KEYS):
        sum_QD = _step_of_queries(
            sum_QD, query_QD, upstream_QD, log_Q, delta_Q, at_Q, keys, values, first, length, scale * LOG2_E,
            key_stride, value_stride, KEYS, D, WIDTH, CAUSAL=False,
        )  # fmt: skip
    for first in range(whole, tl.minimum(before + QUERIES, length), KEYS):
        sum_QD = _step_of_queries(
            sum_QD, query_QD, upstream_QD, log_Q, delta_Q, at_Q, keys, values, first, length, scale * LOG2_E,
            key_stride, value_stride, KEYS, D, WIDTH, CAUSAL=True,
        )  # fmt: skip
    column_D = tl.arange(0, WIDTH)
    there_QD = (at_Q < length)[:, None] & (column_D < D)[None, :]
    place_QD = to_query + own + at_Q[:, None] * (HEADS * D) + column_D[None, :]
    tl.store(place_QD, (sum_QD * scale).to(to_query.dtype.element_ty), there_QD)


@triton.jit
def _step_of_keys(
    to_key_CD, to_value_CD, key_CD, value_CD, at_C, queries, upstream, logs, delta, first, length, scale, query_stride,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    at_Q = first + tl.arange(0, QUERIES)
    query_QD = _block(queries, first, length, query_stride, QUERIES, D, WIDTH, False)
    upstream_QD = _block(upstream, first, length, HEADS * D, QUERIES, D, WIDTH, False)
    log_Q = tl.load(logs + at_Q, at_Q < length, float("inf")) * LOG2_E
    delta_Q = tl.load(delta + at_Q, at_Q < length, 0.0)
    score_CQ = tl.dot(key_CD, query_QD.T, input_precision="ieee") * scale
    weight_CQ = tl.exp2(score_CQ - log_Q[None, :])
    if CAUSAL:
        weight_CQ = tl.where(at_C[:, None] <= at_Q[None, :], weight_CQ, 0.0)
    to_value_CD = tl.dot(weight_CQ.to(key_CD.dtype), upstream_QD, to_value_CD, input_precision="ieee")
    to_weight_CQ = tl.dot(value_CD, upstream_QD.T, input_precision="ieee")
    to_score_CQ = weight_CQ * (to_weight_CQ - delta_Q[None, :])
    to_key_CD = tl.dot(to_score_CQ.to(key_CD.dtype), query_QD, to_key_CD, input_precision="ieee")
    return to_key_CD, to_value_CD


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["starts", "row", "position"])
def _to_keys(
    query, key, value, upstream, logs, delta, to_key, to_value, starts, row, position, scale, tokens,
    query_stride, query_head_stride, key_stride, key_head_stride, value_stride, value_head_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Sum over query blocks: the first NEAR blocks need a causal mask, later blocks see every key."""
    key_heads: tl.constexpr = HEADS // GROUP
    tile, key_head = tl.program_id(0) // key_heads, tl.program_id(0) % key_heads
    sequence, before = tl.load(row + tile), tl.load(position + tile)
    start = tl.load(starts + sequence).to(tl.int64)
    length = (tl.load(starts + sequence + 1) - start).to(tl.int32)
    keys = key + start * key_stride + key_head * key_head_stride
    values = value + start * value_stride + key_head * value_head_stride
    key_CD = _block(keys, before, length, key_stride, KEYS, D, WIDTH, False)
    value_CD = _block(values, before, length, value_stride, KEYS, D, WIDTH, False)
    at_C = before + tl.arange(0, KEYS)
    to_key_CD = tl.zeros((KEYS, WIDTH), tl.float32)
    to_value_CD = tl.zeros((KEYS, WIDTH), tl.float32)
    blocks = tl.cdiv(length - before, QUERIES)
    # One loop over heads and blocks, so that loads are pipelined across heads.
    near = tl.minimum(blocks, NEAR)
    for step in range(0, GROUP * near):
        head = key_head * GROUP + step // near
        to_key_CD, to_value_CD = _step_of_keys(
            to_key_CD, to_value_CD, key_CD, value_CD, at_C, query + start * query_stride + head * query_head_stride,
            upstream + start * HEADS * D + head * D, logs + head.to(tl.int64) * tokens + start,
            delta + head.to(tl.int64) * tokens + start, before + step % near * QUERIES, length, scale * LOG2_E,
            query_stride, HEADS, D, WIDTH, QUERIES, CAUSAL=True,
        )  # fmt: skip
    far = blocks - near
    for step in range(0, GROUP * far):
        head = key_head * GROUP + step // far
        to_key_CD, to_value_CD = _step_of_keys(
            to_key_CD, to_value_CD, key_CD, value_CD, at_C, query + start * query_stride + head * query_head_stride,
            upstream + start * HEADS * D + head * D, logs + head.to(tl.int64) * tokens + start,
            delta + head.to(tl.int64) * tokens + start, before + (NEAR + step % far) * QUERIES, length, scale * LOG2_E,
            query_stride, HEADS, D, WIDTH, QUERIES, CAUSAL=False,
        )  # fmt: skip
    column_D = tl.arange(0, WIDTH)
    there_CD = (at_C < length)[:, None] & (column_D < D)[None, :]
    place_CD = start * key_heads * D + key_head * D + at_C[:, None] * (key_heads * D) + column_D[None, :]
    tl.store(to_key + place_CD, (to_key_CD * scale).to(to_key.dtype.element_ty), there_CD)
    tl.store(to_value + place_CD, to_value_CD.to(to_value.dtype.element_ty), there_CD)


def query_gradient(
    query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, out_NHD: Tensor, upstream_NHD: Tensor, logs_HN: Tensor,
    starts_R1: Tensor, tiles: "Tiles", scale: float, plan: Plan,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradient of the queries, and each query's sum(out * upstream), H x N, which the key gradient needs.

    `out_NHD` and `upstream_NHD` must be contiguous; a tile's slot is its row, with up to `plan.queries` queries.
    """
    (tokens, heads, width), key_heads = query_NHD.shape, key_NKD.shape[1]
    delta_HN = torch.empty_like(logs_HN)
    to_query_NHD = torch.empty(tokens, heads, width, dtype=query_NHD.dtype, device=query_NHD.device)
    _to_queries[(len(tiles.slot_T) * heads,)](
        query_NHD, key_NKD, value_NKD, out_NHD, upstream_NHD, logs_HN, delta_HN, to_query_NHD,
        starts_R1, tiles.slot_T, tiles.position_T, scale, tokens,
        *query_NHD.stride()[:2], *key_NKD.stride()[:2], *value_NKD.stride()[:2],
        HEADS=heads, GROUP=heads // key_heads, D=width, WIDTH=max(MIN_DOT, triton.next_power_of_2(width)),
        QUERIES=plan.queries, KEYS=plan.keys, num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return to_query_NHD, delta_HN


def key_value_gradient(
    query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, upstream_NHD: Tensor, logs_HN: Tensor, delta_HN: Tensor,
    starts_R1: Tensor, tiles: "Tiles", scale: float, plan: Plan,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of keys and values; `upstream_NHD` must be contiguous; tiles have up to `plan.keys` keys of a row."""
    (tokens, heads, width), key_heads = query_NHD.shape, key_NKD.shape[1]
    to_key_NKD, to_value_NKD = (
        torch.empty(tokens, key_heads, width, dtype=query_NHD.dtype, device=query_NHD.device) for _ in range(2)
    )
    _to_keys[(len(tiles.slot_T) * key_heads,)](
        query_NHD, key_NKD, value_NKD, upstream_NHD, logs_HN, delta_HN, to_key_NKD, to_value_NKD,
        starts_R1, tiles.slot_T, tiles.position_T, scale, tokens,
        *query_NHD.stride()[:2], *key_NKD.stride()[:2], *value_NKD.stride()[:2],
        HEADS=heads, GROUP=heads // key_heads, D=width, WIDTH=max(MIN_DOT, triton.next_power_of_2(width)),
        QUERIES=plan.queries, KEYS=plan.keys, NEAR=max(1, plan.keys // plan.queries),
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return to_key_NKD, to_value_NKD
