"""Triton kernels around attention: a step's inputs, and queries and keys rotated on their way to the pages.

Each rounds where transformers' modules round, and nowhere else: to the model's dtype after every operation, with no
multiplication and addition fused, so that engine and training forward differ by the order of sums in matrix products
alone. Every number is read and written once.

Suffixes: N packed tokens, X query, key and value heads side by side, H query heads, D head width,
C positions, B decoding lanes, S slots, P pages.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sleuth.engines.paged.pages import PAGE
from sleuth.model.kernels.rotary import norm_and_rotate

LANES = 128  # that one program prepares


# Parts of an uploaded batch begin anywhere: a kernel compiled anew for each way they are aligned would stall a step.
@triton.jit(do_not_specialize_on_alignment=["positions", "addresses"])
def _rotate_and_store(
    qkv, cos, sin, positions, addresses, keys, values, q_norm, k_norm, query, eps,
    heads: tl.constexpr, key_heads: tl.constexpr, half: tl.constexpr,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = qkv.dtype.element_ty
    width: tl.constexpr = 2 * half
    token = tl.program_id(0).to(tl.int64)
    address = tl.load(addresses + token).to(tl.int64)
    column = tl.arange(0, HALF)[None, :]
    angle = tl.load(positions + token).to(tl.int64) * width + column
    # Both halves of a row of the tables are the same.
    cosine = tl.load(cos + angle, column < half, 0.0).to(tl.float32)
    sine = tl.load(sin + angle, column < half, 0.0).to(tl.float32)

    states = qkv + token * ((heads + 2 * key_heads) * width)
    head = tl.arange(0, HEADS)[:, None]
    inside = (head < heads) & (column < half)
    place = query + token * (heads * width) + head * width + column
    left, right = norm_and_rotate(states, q_norm, cosine, sine, eps, heads, half, HEADS, HALF, dtype)
    tl.store(place, left, inside)
    tl.store(place + half, right, inside)

    if address >= 0:
        key = states + heads * width
        key_head = tl.arange(0, KEY_HEADS)[:, None]
        present = (key_head < key_heads) & (column < half)
        page = ((address // PAGE * key_heads + key_head) * PAGE + address % PAGE) * width + column
        key_left, key_right = norm_and_rotate(key, k_norm, cosine, sine, eps, key_heads, half, KEY_HEADS, HALF, dtype)
        tl.store(keys + page, key_left, present)
        tl.store(keys + page + half, key_right, present)
        value = key + (key_heads + key_head) * width + column
        tl.store(values + page, tl.load(value, present), present)
        tl.store(values + page + half, tl.load(value + half, present), present)


@triton.jit(do_not_specialize=["lanes"], do_not_specialize_on_alignment=["slots", "ids", "positions", "addresses"])
def _inputs(
    slots, tokens, lengths, table, ids, positions, addresses, lanes,
    nobody: tl.constexpr, pages: tl.constexpr, PAGE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    there = lane < lanes
    slot = tl.load(slots + lane, there, nobody)
    somebody = there & (slot != nobody)
    before = tl.load(lengths + slot, somebody, 0)
    grows = somebody & (before < pages * PAGE)
    position = tl.minimum(before, pages * PAGE - 1)
    page = tl.load(table + slot.to(tl.int64) * pages + position // PAGE, grows, 0)
    tl.store(lengths + slot, position + 1, there)
    tl.store(ids + lane, tl.load(tokens + slot, there, 0), there)
    tl.store(positions + lane, position, there)
    tl.store(addresses + lane, tl.where(grows, page * PAGE + position % PAGE, -1), there)


def rotate_and_store(
    qkv_NX: Tensor,
    cos_CD: Tensor,
    sin_CD: Tensor,
    positions_N: Tensor,
    addresses_N: Tensor,
    keys: Tensor,
    values: Tensor,
    q_norm_D: Tensor | None,
    k_norm_D: Tensor | None,
    eps: float,
    heads: int,
    key_heads: int,
) -> Tensor:
    """The rotated queries, N x H x D; rotated keys and values go to their pages, where a token has an address.

    Heads of queries and keys are normed first where there are norms.
    """
    rows, half = len(qkv_NX), cos_CD.shape[1] // 2
    query_NHD = torch.empty(rows, heads, 2 * half, dtype=qkv_NX.dtype, device=qkv_NX.device)
    padded_heads, padded_half = triton.next_power_of_2(heads), triton.next_power_of_2(half)
    _rotate_and_store[(rows,)](
        qkv_NX, cos_CD, sin_CD, positions_N, addresses_N, keys, values, q_norm_D, k_norm_D, query_NHD, eps,
        heads, key_heads, half, padded_heads, triton.next_power_of_2(key_heads), padded_half, PAGE,
        num_warps=min(8, max(1, padded_heads * padded_half // 256)), enable_fp_fusion=False,
    )  # fmt: skip
    return query_NHD


def inputs(
    slots_B: Tensor,
    tokens_S: Tensor,
    lengths_S: Tensor,
    table_SX: Tensor,
    ids_N: Tensor,
    positions_N: Tensor,
    addresses_N: Tensor,
) -> None:
    """Lets each lane's slot grow by the token it sampled last, and says what that token is, where it stands and goes.

    A lane of the last slot, which is nobody's, and a lane whose row of the table is full have no address; their lengths
    stay as they are: 1 for nobody.
    """
    lanes = len(slots_B)
    _inputs[(triton.cdiv(lanes, LANES),)](
        slots_B, tokens_S, lengths_S, table_SX, ids_N, positions_N, addresses_N, lanes,
        len(lengths_S) - 1, table_SX.shape[1], PAGE, LANES, num_warps=4,
    )  # fmt: skip
