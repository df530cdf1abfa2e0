"""Triton kernels that rotate query and key heads, after an optional per-head RMSNorm, with their gradient.

A row holds a token's query, key and value heads side by side, as one matrix product leaves them.

Suffixes: N packed tokens, X query, key and value heads side by side, H query heads, K key heads, D head width,
P programs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sleuth.model.kernels.pointwise import inverse_rms
from sleuth.model.kernels.reductions import program_count, sum_rows

ELEMENTS = 1024  # of each half of the heads, per program and iteration of the gradient
Norms = tuple[Tensor | None, Tensor | None]  # weights of query and key norms: both or neither


@triton.jit
def norm_and_rotate(
    states, norm, cosine, sine, eps,
    heads: tl.constexpr, half: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Optionally norm a token's heads, then rotate both halves of each head."""
    head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (column < half)
    place = states + head * (2 * half) + column
    left = tl.load(place, inside, 0.0).to(tl.float32)
    right = tl.load(place + half, inside, 0.0).to(tl.float32)
    if norm is not None:
        scale = _scale(left, right, eps, half)
        first = tl.load(norm + column, column < half, 0.0).to(tl.float32)
        second = tl.load(norm + half + column, column < half, 0.0).to(tl.float32)
        left = (first * (left * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        right = (second * (right * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    rotated_left = (left * cosine).to(dtype).to(tl.float32) - (right * sine).to(dtype).to(tl.float32)
    rotated_right = (right * cosine).to(dtype).to(tl.float32) + (left * sine).to(dtype).to(tl.float32)
    return rotated_left.to(dtype), rotated_right.to(dtype)


@triton.jit
def _scale(left, right, eps, half: tl.constexpr):
    # Squares of half-precision elements, summed in fp64, are exact in any order.
    squares = tl.sum((left * left).to(tl.float64) + (right * right).to(tl.float64), 1)
    return inverse_rms(squares, eps, 2 * half)[:, None]


@triton.jit
def _rotate(
    qkv, cos, sin, q_norm, k_norm, out, eps,
    heads: tl.constexpr, key_heads: tl.constexpr, half: tl.constexpr,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HALF: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = qkv.dtype.element_ty
    width: tl.constexpr = 2 * half
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HALF)[None, :]
    # Both halves of a table row are equal.
    cosine = tl.load(cos + token * width + column, column < half, 0.0).to(tl.float32)
    sine = tl.load(sin + token * width + column, column < half, 0.0).to(tl.float32)
    row = token * ((heads + 2 * key_heads) * width)
    head, key_head = tl.arange(0, HEADS)[:, None], tl.arange(0, KEY_HEADS)[:, None]
    inside, present = (head < heads) & (column < half), (key_head < key_heads) & (column < half)
    left, right = norm_and_rotate(qkv + row, q_norm, cosine, sine, eps, heads, half, HEADS, HALF, dtype)
    place = out + row + head * width + column
    tl.store(place, left, inside)
    tl.store(place + half, right, inside)
    row += heads * width
    key_left, key_right = norm_and_rotate(qkv + row, k_norm, cosine, sine, eps, key_heads, half, KEY_HEADS, HALF, dtype)
    key_place = row + key_head * width + column
    tl.store(out + key_place, key_left, present)
    tl.store(out + key_place + half, key_right, present)
    if COPY:
        key_place += key_heads * width
        tl.store(out + key_place, tl.load(qkv + key_place, present), present)
        tl.store(out + key_place + half, tl.load(qkv + key_place + half, present), present)


@triton.jit
def _upstream(
    to_query, to_key, to_value, token, head, column, inside,
    heads: tl.constexpr, key_heads: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Load the incoming gradient for columns of query, key or value heads."""
    of_query, of_value = head < heads, head >= heads + key_heads
    place = (token * heads + head) * width + column
    key_place = (token * key_heads + (head - heads) % key_heads) * width + column
    query = tl.load(to_query + place, inside & of_query, 0.0).to(tl.float32)
    key = tl.load(to_key + key_place, inside & (head >= heads) & (head < heads + key_heads), 0.0).to(tl.float32)
    value = tl.load(to_value + key_place, inside & of_value, 0.0).to(tl.float32)
    return query + key + value


@triton.jit
def _norm_weight(q_norm, k_norm, of_query, column, inside):
    of_queries = tl.load(q_norm + column, inside, 0.0).to(tl.float32)
    of_keys = tl.load(k_norm + column, inside, 0.0).to(tl.float32)
    return tl.where(of_query, of_queries, of_keys)


# The heads of all tokens are rows of one matrix, so that no lane idles when the head count is not a power of two.
@triton.jit(do_not_specialize=["rows"])
def _rotate_backward(
    to_query, to_key, to_value, qkv, cos, sin, q_norm, k_norm, out, partial, eps, rows,
    heads: tl.constexpr, key_heads: tl.constexpr, half: tl.constexpr,
    HALF: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = out.dtype.element_ty
    width: tl.constexpr = 2 * half
    every: tl.constexpr = heads + 2 * key_heads
    program, count = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, HALF)[None, :]
    narrow = column < half
    q_first, q_second = tl.zeros((ROWS, HALF), tl.float32), tl.zeros((ROWS, HALF), tl.float32)
    k_first, k_second = tl.zeros((ROWS, HALF), tl.float32), tl.zeros((ROWS, HALF), tl.float32)
    for start in range(program * ROWS, rows, count * ROWS):
        row = (start + tl.arange(0, ROWS))[:, None]
        token, head, inside = (row // every).to(tl.int64), row % every, (row < rows) & narrow
        arrived = _upstream(to_query, to_key, to_value, token, head, column, inside, heads, key_heads, width)
        arrived_right = _upstream(
            to_query, to_key, to_value, token, head, column + half, inside, heads, key_heads, width
        )  # fmt: skip
        of_query, rotates = head < heads, head < heads + key_heads
        # Values are not rotated: an angle of 0.
        cosine = tl.load(cos + token * width + column, inside & rotates, 1.0).to(tl.float32)
        sine = tl.load(sin + token * width + column, inside & rotates, 0.0).to(tl.float32)
        to_left = arrived * cosine + arrived_right * sine
        to_right = arrived_right * cosine - arrived * sine
        place = row.to(tl.int64) * width + column
        if partial is not None:
            left = tl.load(qkv + place, inside, 0.0).to(tl.float32)
            right = tl.load(qkv + place + half, inside, 0.0).to(tl.float32)
            scale = _scale(left, right, eps, half)
            left, right = left * scale, right * scale
            of_key = rotates & (head >= heads)
            q_first += tl.where(of_query, to_left * left, 0.0)
            q_second += tl.where(of_query, to_right * right, 0.0)
            k_first += tl.where(of_key, to_left * left, 0.0)
            k_second += tl.where(of_key, to_right * right, 0.0)
            normed_left = to_left * _norm_weight(q_norm, k_norm, of_query, column, narrow)
            normed_right = to_right * _norm_weight(q_norm, k_norm, of_query, column + half, narrow)
            mean = (tl.sum(normed_left * left + normed_right * right, 1) / width)[:, None]
            to_left = tl.where(rotates, scale * (normed_left - left * mean), to_left)
            to_right = tl.where(rotates, scale * (normed_right - right * mean), to_right)
        tl.store(out + place, to_left.to(dtype), inside)
        tl.store(out + place + half, to_right.to(dtype), inside)
    if partial is not None:
        own, of_half = partial + program * (2 * width) + tl.arange(0, HALF), tl.arange(0, HALF) < half
        tl.store(own, tl.sum(q_first, 0), of_half)
        tl.store(own + half, tl.sum(q_second, 0), of_half)
        tl.store(own + width, tl.sum(k_first, 0), of_half)
        tl.store(own + width + half, tl.sum(k_second, 0), of_half)


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Number of heads in a row, their width, and epsilon of their norms."""

    heads: int
    key_heads: int
    width: int
    eps: float = 0.0

    def split(self, rows_NX: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows_NXD = rows_NX.view(len(rows_NX), -1, self.width)
        query_NHD, key_NKD, value_NKD = rows_NXD.split([self.heads, self.key_heads, self.key_heads], 1)
        return query_NHD, key_NKD, value_NKD


def rotate(qkv_NX: Tensor, cos_ND: Tensor, sin_ND: Tensor, norms: Norms, shape: HeadLayout, out_NX: Tensor) -> None:
    """Write each token's rotated queries and keys, and its values; `out_NX` may be `qkv_NX`."""
    if not len(qkv_NX):
        return
    sizes = shape.heads, shape.key_heads, shape.width // 2
    padded = [triton.next_power_of_2(each) for each in sizes]
    _rotate[(len(qkv_NX),)](
        qkv_NX, cos_ND, sin_ND, *norms, out_NX, shape.eps, *sizes, *padded,
        COPY=out_NX.data_ptr() != qkv_NX.data_ptr(), num_warps=min(8, max(1, padded[0] * padded[2] // 256)),
        enable_fp_fusion=False,
    )  # fmt: skip


def rotate_backward(
    to_query_NHD: Tensor, to_key_NKD: Tensor, to_value_NKD: Tensor,
    qkv_NX: Tensor, cos_ND: Tensor, sin_ND: Tensor, norms: Norms, shape: HeadLayout, elements: int = ELEMENTS,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of `qkv_NX` and of the norms' weights.

    `qkv_NX` is read only if there are norms; otherwise it may have been rotated in place.
    """
    half, width = shape.width // 2, shape.width
    padded = triton.next_power_of_2(half)
    own, rows = max(1, elements // padded), len(qkv_NX) * (shape.heads + 2 * shape.key_heads)
    count = triton.cdiv(rows, own)
    out_NX = torch.empty_like(qkv_NX)
    partial_P2D = None
    if norms[0] is not None:
        count = program_count(count, qkv_NX.device)
        partial_P2D = torch.empty(count, 2 * width, dtype=torch.float32, device=out_NX.device)
    if rows:
        _rotate_backward[(count,)](
            to_query_NHD.contiguous(), to_key_NKD.contiguous(), to_value_NKD.contiguous(), qkv_NX, cos_ND, sin_ND,
            *norms, out_NX, partial_P2D, shape.eps, rows, shape.heads, shape.key_heads, half, padded, own,
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    if partial_P2D is None:
        return out_NX, None, None
    to_query_norm_D, to_key_norm_D = sum_rows(partial_P2D, qkv_NX.dtype).split(width)
    return out_NX, to_query_norm_D, to_key_norm_D
