"""Triton kernels for attention over cached pages: decode, prefill, and the store of keys and values.

Query heads that share a key head are rows of one matrix product, so keys and values are read once per group.

Suffixes: N packed tokens, B lanes, T tiles, H heads, K key heads, D head width, S slots, X pages of the longest
sequence; in kernels R rows (queries x heads of a group), C tokens of a block, O ones.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from sleuth.model.kernels.reductions import sm_count

if TYPE_CHECKING:
    from sleuth.model.attention import Tiles

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
ROWS = 128  # maximum per prefill tile
MIN_DOT = 16  # smallest dimension of tl.dot
ONES: tl.constexpr = tl.constexpr(16)
MAX_SPLITS = 32  # of one lane's tokens
# Tokens per iteration in every kernel. Subtracting the running maximum rounds each score, and the maximum changes block
# by block: with other block sizes a few weights in a million would differ in the last bit.
BLOCK: tl.constexpr = tl.constexpr(32)
UNSPLIT = 4112  # longest context that is never split: 4,096 tokens and the next page


@dataclass(frozen=True, slots=True)
class Plan:
    """Warps, pipeline stages, and rows of a prefill tile per program."""

    warps: int
    stages: int
    rows: int = ROWS


# Keyed by maximum bytes of one token's key: the fastest of several dozen plans on an H200; FEW is for few programs.
# fp32 products run without tensor cores, so they use fewer rows.
DECODE = ((256, Plan(1, 3)), (512, Plan(4, 2)))
FEW = ((128, Plan(1, 3)), (256, Plan(4, 3)), *DECODE)
PREFILL = ((256, Plan(4, 2, rows=64)), (512, Plan(8, 2)))
PREFILL_FP32 = ((256, Plan(4, 2, rows=32)), (512, Plan(8, 2, rows=32)))
TRAINING = ((128, Plan(4, 3, rows=64)), *PREFILL)
WIDE = Plan(8, 1, rows=16)


def plan_for(plans: tuple[tuple[int, Plan], ...], keys: Tensor) -> Plan:
    """Choose the plan whose loads in flight fit in shared memory."""
    size = keys.shape[-1] * keys.element_size()
    return next((plan for most, plan in plans if size <= most), WIDE)


def splits_for(programs: int, context: int, device: torch.device) -> int:
    """Number of programs that share one lane's tokens: more than 1 only for few lanes with very long contexts.

    Split sums differ from training in the last bits. The number ignores sequence lengths, as CUDA graphs require.
    """
    most = max(1, min(MAX_SPLITS, sm_count(device) // programs)) if context > UNSPLIT else 1
    return 1 << most.bit_length() - 1  # each value is a separate compilation


@triton.jit
def _step(
    query_RD, highest_R, total_RO, sum_RD, keys, values, table, head, start, end, position_R, scale,
    KEY_HEADS: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One online-softmax step over a block: rows see tokens before `end`, or up to their own position.

    Without a table tokens are contiguous, and non-causal blocks are full.
    """
    token_C = start + tl.arange(0, BLOCK)
    column_D = tl.arange(0, query_RD.shape[1])
    there_C = token_C < end
    if table is None:
        place_CD = token_C[:, None] * (KEY_HEADS * D) + (head * D + column_D)[None, :]
    else:
        page_C = tl.load(table + token_C // PAGE, there_C, 0).to(tl.int64)
        place_CD = ((page_C * KEY_HEADS + head) * PAGE + token_C % PAGE)[:, None] * D + column_D[None, :]
    if table is None and not CAUSAL and query_RD.shape[1] == D:
        key_CD, value_CD = tl.load(keys + place_CD), tl.load(values + place_CD)
    else:
        there_CD = there_C[:, None] & (column_D < D)[None, :]
        key_CD, value_CD = tl.load(keys + place_CD, there_CD, 0.0), tl.load(values + place_CD, there_CD, 0.0)
    score_RC = tl.dot(query_RD, key_CD.T, input_precision="ieee") * scale
    if CAUSAL:
        score_RC = tl.where(token_C[None, :] <= position_R[:, None], score_RC, float("-inf"))
    else:
        score_RC = tl.where(there_C[None, :], score_RC, float("-inf"))
    # Integer maxima (in log2) make rescaling exact: weights round identically and sums scale without rounding,
    # whichever block has the highest score. Training, prefill and decode end with the same bits.
    higher_R = tl.maximum(highest_R, tl.ceil(tl.max(score_RC, 1)))
    weight_RC = tl.exp2(score_RC - higher_R[:, None])
    fade_R = tl.exp2(highest_R - higher_R)
    weight_RC = weight_RC.to(value_CD.dtype)
    sum_RD = tl.dot(weight_RC, value_CD, sum_RD * fade_R[:, None], input_precision="ieee")
    # Row sums as a product with ones: the matrix unit sums in the same order in every kernel.
    ones_CO = tl.full((BLOCK, total_RO.shape[1]), 1.0, value_CD.dtype)
    total_RO = tl.dot(weight_RC, ones_CO, total_RO * fade_R[:, None], input_precision="ieee")
    return higher_R, total_RO, sum_RD


@triton.jit
def _decode(
    query, keys, values, table, slots, lengths, out, partial, logs, scale,
    lane_stride, head_stride, out_lane_stride, out_head_stride, table_stride,
    KEY_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    lane, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + lane).to(tl.int64)
    length = tl.load(lengths + slot)
    share = tl.cdiv(tl.cdiv(length, BLOCK), tl.num_programs(2)) * BLOCK
    start = split * share
    end = tl.minimum(start + share, length)
    row_R = tl.arange(0, ROWS)
    column_D = tl.arange(0, WIDTH)
    head_R = head * GROUP + row_R
    there_RD = (row_R < GROUP)[:, None] & (column_D < D)[None, :]
    query_RD = tl.load(query + lane * lane_stride + head_R[:, None] * head_stride + column_D[None, :], there_RD, 0.0)
    # Finite, so that the difference of two is 0 when nothing is visible.
    highest_R = tl.full((ROWS,), -1e30, tl.float32)
    total_RO = tl.zeros((ROWS, ONES), tl.float32)
    sum_RD = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(start, end, BLOCK):
        highest_R, total_RO, sum_RD = _step(
            query_RD, highest_R, total_RO, sum_RD, keys, values, table + slot * table_stride, head, first, end, row_R,
            scale, KEY_HEADS, PAGE, D, CAUSAL=False,
        )  # fmt: skip
    total_R = tl.max(total_RO, 1)
    seen_R = total_R > 0
    out_RD = sum_RD / tl.where(seen_R, total_R, 1.0)[:, None]
    if WHOLE:
        place_RD = lane * out_lane_stride + head_R[:, None] * out_head_stride + column_D[None, :]
        tl.store(out + place_RD, out_RD.to(out.dtype.element_ty), there_RD)
    else:
        part_R = (lane * KEY_HEADS * GROUP + head_R) * tl.num_programs(2) + split
        tl.store(partial + part_R[:, None] * D + column_D[None, :], out_RD, there_RD)
        log_R = tl.where(seen_R, highest_R + tl.log2(tl.where(seen_R, total_R, 1.0)), -1e30)
        tl.store(logs + part_R, log_R, row_R < GROUP)


@triton.jit
def _combine(
    partial, logs, out, out_lane_stride, out_head_stride,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    lane, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split_P = tl.arange(0, PARTS)
    column_D = tl.arange(0, WIDTH)
    part_P = (lane * HEADS + head) * SPLITS + split_P
    log_P = tl.load(logs + part_P, split_P < SPLITS, float("-inf"))
    weight_P = tl.exp2(log_P - tl.max(log_P, 0))
    # An empty split holds zeros and has weight 0, unless all splits are empty.
    there_PD = (weight_P > 0)[:, None] & (column_D < D)[None, :]
    part_PD = tl.load(partial + part_P[:, None] * D + column_D[None, :], there_PD, 0.0)
    out_D = tl.sum(part_PD * weight_P[:, None], 0) / tl.sum(weight_P, 0)
    place_D = lane * out_lane_stride + head * out_head_stride + column_D
    tl.store(out + place_D, out_D.to(out.dtype.element_ty), column_D < D)


# These vary per batch: recompilation for values divisible by 16 would stall a step.
@triton.jit(
    do_not_specialize=["table_stride", "logs_stride"],
    do_not_specialize_on_alignment=["first", "slot", "position", "count"],
)
def _prefill(
    query, out, logs, keys, values, table, first, slot, position, count, scale,
    token_stride, head_stride, out_token_stride, out_head_stride, table_stride, logs_stride,
    KEY_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    # The last tile of a sequence has the most work, so it starts first.
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    packed = tl.load(first + tile).to(tl.int64)
    before, queries = tl.load(position + tile), tl.load(count + tile)
    pages = None
    if table is None:
        keys += (packed - before) * (KEY_HEADS * D)
        values += (packed - before) * (KEY_HEADS * D)
    else:
        pages = table + tl.load(slot + tile).to(tl.int64) * table_stride
    row_R = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column_D = tl.arange(0, WIDTH)
    token_R, head_R = row_R // GROUP, head * GROUP + row_R % GROUP
    there_RD = (token_R < queries)[:, None] & (column_D < D)[None, :]
    query_R = (packed + token_R) * token_stride + head_R * head_stride
    query_RD = tl.load(query + query_R[:, None] + column_D[None, :], there_RD, 0.0)
    position_R = before + token_R
    highest_R = tl.full((ROWS,), -1e30, tl.float32)
    total_RO = tl.zeros((ROWS, ONES), tl.float32)
    sum_RD = tl.zeros((ROWS, WIDTH), tl.float32)
    # Blocks that every query sees need no causal mask; rows past the tile's queries need no blocks.
    begun = tl.program_id(2) * ROWS < queries * GROUP
    whole = tl.where(begun, (before + 1) // BLOCK * BLOCK, 0)
    end = tl.where(begun, before + tl.minimum(queries, (tl.program_id(2) + 1) * ROWS // GROUP + 1), 0)
    for start in range(0, whole, BLOCK):
        highest_R, total_RO, sum_RD = _step(
            query_RD, highest_R, total_RO, sum_RD, keys, values, pages, head, start, whole, position_R,
            scale, KEY_HEADS, PAGE, D, CAUSAL=False,
        )  # fmt: skip
    for start in range(whole, end, BLOCK):
        highest_R, total_RO, sum_RD = _step(
            query_RD, highest_R, total_RO, sum_RD, keys, values, pages, head, start, end, position_R,
            scale, KEY_HEADS, PAGE, D, CAUSAL=True,
        )  # fmt: skip
    total_R = tl.max(total_RO, 1)
    out_R = (packed + token_R) * out_token_stride + head_R * out_head_stride
    out_RD = (sum_RD / tl.where(total_R > 0, total_R, 1.0)[:, None]).to(out.dtype.element_ty)
    tl.store(out + out_R[:, None] + column_D[None, :], out_RD, there_RD)
    if logs is not None:
        log_R = (highest_R + tl.log2(tl.where(total_R > 0, total_R, 1.0))) / LOG2_E
        tl.store(logs + head_R * logs_stride + packed + token_R, log_R, token_R < queries)


@triton.jit
def _store(
    key, value, keys, values, addresses, key_token_stride, key_head_stride, value_token_stride, value_head_stride,
    KEY_HEADS: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    address = tl.load(addresses + token).to(tl.int64)
    if address >= 0:
        item = tl.arange(0, WIDTH)
        head, column = item // D, item % D
        there = item < KEY_HEADS * D
        place = ((address // PAGE * KEY_HEADS + head) * PAGE + address % PAGE) * D + column
        new_key = tl.load(key + token * key_token_stride + head * key_head_stride + column, there)
        new_value = tl.load(value + token * value_token_stride + head * value_head_stride + column, there)
        tl.store(keys + place, new_key.to(keys.dtype.element_ty), there)
        tl.store(values + place, new_value.to(values.dtype.element_ty), there)


def decode(
    query_BHD: Tensor, keys: Tensor, values: Tensor, table_SX: Tensor, slots_B: Tensor, lengths_S: Tensor,
    scale: float, out_BHD: Tensor | None = None, *, plan: Plan | None = None, splits: int | None = None,
) -> Tensor:  # fmt: skip
    """Attend from each lane's query to the first `lengths_S[slot]` tokens of its slot; zeros if there are none."""
    (lanes, heads, width), (_, key_heads, page, _) = query_BHD.shape, keys.shape
    if out_BHD is None:
        out_BHD = torch.empty((lanes, heads, width), dtype=query_BHD.dtype, device=query_BHD.device)
    if not lanes:
        return out_BHD
    programs = lanes * key_heads
    few = programs < 2 * sm_count(keys.device) and keys.dtype != torch.float32
    plan = plan or plan_for(FEW if few else DECODE, keys)
    splits = splits or splits_for(programs, table_SX.shape[1] * page, keys.device)
    padded = max(MIN_DOT, triton.next_power_of_2(width))
    scratch = (lanes, heads, splits) if splits > 1 else (0, 0, 0)
    partial = torch.empty((*scratch, width), dtype=torch.float32, device=keys.device)
    logs = torch.empty(scratch, dtype=torch.float32, device=keys.device)
    _decode[(lanes, key_heads, splits)](
        query_BHD, keys, values, table_SX, slots_B, lengths_S, out_BHD, partial, logs, scale * LOG2_E.value,
        *query_BHD.stride()[:2], *out_BHD.stride()[:2], table_SX.stride(0),
        KEY_HEADS=key_heads, GROUP=heads // key_heads, PAGE=page, D=width, WIDTH=padded,
        ROWS=max(MIN_DOT, triton.next_power_of_2(heads // key_heads)), WHOLE=splits == 1,
        num_warps=plan.warps, num_stages=plan.stages, enable_fp_fusion=False,
    )  # fmt: skip
    if splits > 1:
        _combine[(lanes, heads)](
            partial, logs, out_BHD, *out_BHD.stride()[:2],
            HEADS=heads, D=width, WIDTH=padded, SPLITS=splits, PARTS=triton.next_power_of_2(splits),
            num_warps=2, enable_fp_fusion=False,
        )  # fmt: skip
    return out_BHD


def tile_queries(heads: int, key_heads: int) -> int:
    """Maximum queries of a prefill tile, such that queries x heads of a group fill the rows of a matrix product."""
    return max(1, ROWS * key_heads // heads)


def prefill(
    query_NHD: Tensor, out_NHD: Tensor, keys: Tensor, values: Tensor, table_SX: Tensor | None, tiles: "Tiles",
    scale: float, logs_HN: Tensor | None = None, *, plan: Plan | None = None,
) -> None:  # fmt: skip
    """Write the causal attention of the tiles' queries over their slots; other rows of `out_NHD` stay unchanged.

    `logs_HN` receives each softmax's log-sum-exp, for the backward pass. Keys and values may be strided views of QKV
    rows. Without a table they are packed like the queries, one token per page.
    """
    (_, heads, width), (_, key_heads, page, _) = query_NHD.shape, keys.shape
    half = PREFILL if table_SX is not None else TRAINING
    plan = plan or plan_for(PREFILL_FP32 if keys.dtype == torch.float32 else half, keys)
    rows = triton.next_power_of_2(tile_queries(heads, key_heads) * heads // key_heads)
    own = min(rows, plan.rows)
    _prefill[(len(tiles.first_T), key_heads, rows // own)](
        query_NHD, out_NHD, logs_HN, keys, values, table_SX,
        tiles.first_T, tiles.slot_T, tiles.position_T, tiles.count_T, scale * LOG2_E.value,
        *query_NHD.stride()[:2], *out_NHD.stride()[:2], 0 if table_SX is None else table_SX.stride(0), len(query_NHD),
        KEY_HEADS=keys.stride(0) // (page * width), GROUP=heads // key_heads, ROWS=own, PAGE=page, D=width,
        WIDTH=max(MIN_DOT, triton.next_power_of_2(width)),
        num_warps=plan.warps, num_stages=plan.stages, enable_fp_fusion=False,
    )  # fmt: skip


def store(key_NKD: Tensor, value_NKD: Tensor, keys: Tensor, values: Tensor, addresses_N: Tensor) -> None:
    """Write keys and values of new tokens to their addresses, skipping tokens with address -1."""
    (tokens, key_heads, width), page = key_NKD.shape, keys.shape[2]
    _store[(tokens,)](
        key_NKD, value_NKD, keys, values, addresses_N, *key_NKD.stride()[:2], *value_NKD.stride()[:2],
        KEY_HEADS=key_heads, PAGE=page, D=width, WIDTH=triton.next_power_of_2(key_heads * width), num_warps=2,
    )  # fmt: skip
