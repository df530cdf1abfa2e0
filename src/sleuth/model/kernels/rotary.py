"""Triton kernels that rotate the heads of queries and keys, and norm them first where the model does, both ways.

A row holds the heads of a token's queries, keys and values side by side, as one product leaves them.

Suffixes: N packed tokens, X query, key and value heads side by side, H query heads, K key heads, D head width,
P programs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sleuth.model.kernels.device import programs

Norms = tuple[Tensor | None, Tensor | None]  # weights of the norms of query and key heads: both or none


@triton.jit
def turned(
    states, norm, cosine, sine, eps,
    heads: tl.constexpr, half: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """The two halves of each of a token's heads, normed where there is a norm, then rotated."""
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
    turned_left = (left * cosine).to(dtype).to(tl.float32) - (right * sine).to(dtype).to(tl.float32)
    turned_right = (right * cosine).to(dtype).to(tl.float32) + (left * sine).to(dtype).to(tl.float32)
    return turned_left.to(dtype), turned_right.to(dtype)


@triton.jit
def _scale(left, right, eps, half: tl.constexpr):
    # Squares of half precision summed in fp64 are exact, in whatever order, as in the norm of whole rows.
    squares = tl.sum((left * left).to(tl.float64) + (right * right).to(tl.float64), 1)
    return tl.rsqrt((squares / (2 * half)).to(tl.float32) + eps)[:, None]


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
    # Both halves of a row of the tables are the same.
    cosine = tl.load(cos + token * width + column, column < half, 0.0).to(tl.float32)
    sine = tl.load(sin + token * width + column, column < half, 0.0).to(tl.float32)
    row = token * ((heads + 2 * key_heads) * width)
    head, key_head = tl.arange(0, HEADS)[:, None], tl.arange(0, KEY_HEADS)[:, None]
    inside, present = (head < heads) & (column < half), (key_head < key_heads) & (column < half)
    left, right = turned(qkv + row, q_norm, cosine, sine, eps, heads, half, HEADS, HALF, dtype)
    place = out + row + head * width + column
    tl.store(place, left, inside)
    tl.store(place + half, right, inside)
    row += heads * width
    key_left, key_right = turned(qkv + row, k_norm, cosine, sine, eps, key_heads, half, KEY_HEADS, HALF, dtype)
    key_place = row + key_head * width + column
    tl.store(out + key_place, key_left, present)
    tl.store(out + key_place + half, key_right, present)
    if COPY:
        key_place += key_heads * width
        tl.store(out + key_place, tl.load(qkv + key_place, present), present)
        tl.store(out + key_place + half, tl.load(qkv + key_place + half, present), present)


@triton.jit
def _turned_back(
    gradient, states, norm, cosine, sine, eps,
    heads: tl.constexpr, half: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Gradients of both halves before norm and rotation, and what the heads together give the halves of the norm."""
    head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (column < half)
    place = head * (2 * half) + column
    upstream_left = tl.load(gradient + place, inside, 0.0).to(tl.float32)
    upstream_right = tl.load(gradient + place + half, inside, 0.0).to(tl.float32)
    to_left = upstream_left * cosine + upstream_right * sine
    to_right = upstream_right * cosine - upstream_left * sine
    to_first, to_second = tl.zeros((HALF,), tl.float32), tl.zeros((HALF,), tl.float32)
    if norm is not None:
        left = tl.load(states + place, inside, 0.0).to(tl.float32)
        right = tl.load(states + place + half, inside, 0.0).to(tl.float32)
        scale = _scale(left, right, eps, half)
        left, right = left * scale, right * scale
        to_first, to_second = tl.sum(to_left * left, 0), tl.sum(to_right * right, 0)
        to_left *= tl.load(norm + column, column < half, 0.0).to(tl.float32)
        to_right *= tl.load(norm + half + column, column < half, 0.0).to(tl.float32)
        mean = (tl.sum(to_left * left + to_right * right, 1) / (2 * half))[:, None]
        to_left, to_right = scale * (to_left - left * mean), scale * (to_right - right * mean)
    return to_left, to_right, to_first, to_second


@triton.jit(do_not_specialize=["tokens"])
def _rotate_back(
    to_query, to_key, to_value, qkv, cos, sin, q_norm, k_norm, out, partial, eps, tokens,
    heads: tl.constexpr, key_heads: tl.constexpr, half: tl.constexpr,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = out.dtype.element_ty
    width: tl.constexpr = 2 * half
    program, count = tl.program_id(0), tl.num_programs(0)
    token, column = program.to(tl.int64), tl.arange(0, HALF)[None, :]
    head, key_head = tl.arange(0, HEADS)[:, None], tl.arange(0, KEY_HEADS)[:, None]
    inside, present = (head < heads) & (column < half), (key_head < key_heads) & (column < half)
    q_first, q_second = tl.zeros((HALF,), tl.float32), tl.zeros((HALF,), tl.float32)
    k_first, k_second = tl.zeros((HALF,), tl.float32), tl.zeros((HALF,), tl.float32)
    for _ in range(program, tokens, count):
        cosine = tl.load(cos + token * width + column, column < half, 0.0).to(tl.float32)
        sine = tl.load(sin + token * width + column, column < half, 0.0).to(tl.float32)
        row = token * ((heads + 2 * key_heads) * width)
        left, right, first, second = _turned_back(
            to_query + token * (heads * width), qkv + row, q_norm, cosine, sine, eps, heads, half, HEADS, HALF
        )
        q_first, q_second = q_first + first, q_second + second
        place = out + row + head * width + column
        tl.store(place, left.to(dtype), inside)
        tl.store(place + half, right.to(dtype), inside)
        row += heads * width
        key_left, key_right, first, second = _turned_back(
            to_key + token * (key_heads * width), qkv + row, k_norm, cosine, sine, eps, key_heads, half, KEY_HEADS, HALF
        )
        k_first, k_second = k_first + first, k_second + second
        key_place = key_head * width + column
        tl.store(out + row + key_place, key_left.to(dtype), present)
        tl.store(out + row + key_place + half, key_right.to(dtype), present)
        row += key_heads * width
        value = to_value + token * (key_heads * width) + key_place
        tl.store(out + row + key_place, tl.load(value, present), present)
        tl.store(out + row + key_place + half, tl.load(value + half, present), present)
        token += count
    if partial is not None:
        own, of_half = partial + program * (2 * width) + tl.arange(0, HALF), tl.arange(0, HALF) < half
        tl.store(own, q_first, of_half)
        tl.store(own + half, q_second, of_half)
        tl.store(own + width, k_first, of_half)
        tl.store(own + width + half, k_second, of_half)


@dataclass(frozen=True, slots=True)
class Heads:
    """How many heads of what width lie in a row, and what the mean squares of their norms are raised by."""

    heads: int
    key_heads: int
    width: int
    eps: float = 0.0

    def split(self, rows_NX: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, where they lie."""
        rows_NXD = rows_NX.view(len(rows_NX), -1, self.width)
        query_NHD, key_NKD, value_NKD = rows_NXD.split([self.heads, self.key_heads, self.key_heads], 1)
        return query_NHD, key_NKD, value_NKD


def rotate(qkv_NX: Tensor, cos_ND: Tensor, sin_ND: Tensor, norms: Norms, shape: Heads, out_NX: Tensor) -> None:
    """Writes each token's rotated queries and keys, and its values; `out_NX` may be `qkv_NX` itself."""
    if not len(qkv_NX):
        return
    _rotate[(len(qkv_NX),)](
        qkv_NX, cos_ND, sin_ND, *norms, out_NX, shape.eps, *_sizes(shape),
        COPY=out_NX.data_ptr() != qkv_NX.data_ptr(), num_warps=_warps(shape), enable_fp_fusion=False,
    )  # fmt: skip


def rotate_back(
    to_query_NHD: Tensor, to_key_NKD: Tensor, to_value_NKD: Tensor,
    qkv_NX: Tensor, cos_ND: Tensor, sin_ND: Tensor, norms: Norms, shape: Heads,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradient of what `rotate` was given, and of the norms of queries and keys.

    `qkv_NX` is read where there are norms alone: without them it may have been rotated in place.
    """
    tokens = len(qkv_NX)
    count = programs(tokens, qkv_NX.device)
    out_NX = torch.empty_like(qkv_NX)
    partial_P2D = None
    if norms[0] is not None:
        partial_P2D = torch.empty(count, 2, shape.width, dtype=torch.float32, device=out_NX.device)
    if tokens:
        _rotate_back[(count,)](
            to_query_NHD.contiguous(), to_key_NKD.contiguous(), to_value_NKD.contiguous(), qkv_NX, cos_ND, sin_ND,
            *norms, out_NX, partial_P2D, shape.eps, tokens, *_sizes(shape),
            num_warps=_warps(shape),
        )  # fmt: skip
    if partial_P2D is None:
        return out_NX, None, None
    to_query_norm_D, to_key_norm_D = partial_P2D.sum(0).to(qkv_NX.dtype).unbind()
    return out_NX, to_query_norm_D, to_key_norm_D


def _sizes(shape: Heads) -> tuple[int, ...]:
    half = shape.width // 2
    padded = (triton.next_power_of_2(each) for each in (shape.heads, shape.key_heads, half))
    return shape.heads, shape.key_heads, half, *padded


def _warps(shape: Heads) -> int:
    numbers: int = triton.next_power_of_2(shape.heads) * triton.next_power_of_2(shape.width // 2)
    return min(8, max(1, numbers // 256))
