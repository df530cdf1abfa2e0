"""Packed attention on a GPU in half precision, forwards and backwards.

The forward pass is the engine's own, rounding by rounding, so that what the engine sampled and what the trainer scores
differ in no bit. The backward pass sums in one order: the same gradients every time.

Suffixes: N packed tokens, X query, key and value heads side by side, R rows (sequences), H heads, K key heads,
D head width.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sleuth.model.tiles import Tiles, cut

if TYPE_CHECKING:
    from sleuth.model.kernels.rotary import Heads, Norms

WIDEST = 256  # head width of which blocks fit the memory that a multiprocessor shares


def takes(query_NHD: Tensor) -> bool:
    """Whether these states can be attended to here."""
    return query_NHD.is_cuda and query_NHD.dtype.itemsize == 2 and takes_width(query_NHD.shape[-1])


def takes_width(width: int) -> bool:
    return width % 8 == 0 and width <= WIDEST


class Flash:
    """Sequences laid end to end, each token of which sees what precedes it; made once for all layers of a pass."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.starts_R1 = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        self._lengths, self._device = lengths, device
        self._cuts = dict[tuple[int, bool], Tiles]()

    def attend(self, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        """What each token sees, N x H x D."""
        attended: Tensor = _Attend.apply(query_NHD, key_NKD, value_NKD, self, scale)  # type: ignore[no-untyped-call]
        return attended

    def attend_rotated(
        self, qkv_NX: Tensor, cos_ND: Tensor, sin_ND: Tensor, norms: "Norms", shape: "Heads", scale: float
    ) -> Tensor:
        """What each token sees once queries and keys are normed and rotated, N x (H * D).

        `qkv_NX` is the caller's to give away: without norms its heads are rotated where they lie.
        """
        call = (qkv_NX, cos_ND, sin_ND, *norms, shape, self, scale)
        attended: Tensor = _AttendRotated.apply(*call)  # type: ignore[no-untyped-call]
        return attended

    def tiles(self, tokens: int, *, towards_end: bool = False) -> Tiles:
        """Tiles of so many tokens whose slots are rows: most tokens before it is last, or most to the end first."""
        if (tokens, towards_end) not in self._cuts:
            self._cuts[tokens, towards_end] = self._cut(tokens, towards_end)
        return self._cuts[tokens, towards_end]

    def _cut(self, tokens: int, towards_end: bool) -> Tiles:
        starts = accumulate(self._lengths[:-1], initial=0)
        rows = enumerate(zip(starts, self._lengths, strict=True))
        whole = np.concatenate([cut(start, row, 0, length, tokens) for row, (start, length) in rows], axis=1)
        work = whole[2] - np.asarray(self._lengths)[whole[1]] if towards_end else whole[2]
        ordered = np.ascontiguousarray(whole[:, np.argsort(work, kind="stable")])
        return Tiles(*torch.from_numpy(ordered).to(self._device))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, packed: Flash, scale: float) -> Tensor:
        states = tuple(each.contiguous() for each in (query_NHD, key_NKD, value_NKD))
        out_NHD, logs_HN = _forwards(packed, scale, *states)
        ctx.save_for_backward(*states, out_NHD, logs_HN)
        ctx.packed, ctx.scale = packed, scale
        return out_NHD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *_backwards(ctx.packed, ctx.scale, gradients[0], *ctx.saved_tensors), None, None


class _AttendRotated(torch.autograd.Function):
    """Keeps one row of heads a token: those rotated in place or, where they are normed, those before it."""

    @staticmethod
    def forward(
        ctx: Any, qkv_NX: Tensor, cos_ND: Tensor, sin_ND: Tensor, query_norm_D: Tensor | None,
        key_norm_D: Tensor | None, shape: "Heads", packed: Flash, scale: float,
    ) -> Tensor:  # fmt: skip
        from sleuth.model.kernels import rotary

        norms = query_norm_D, key_norm_D
        rotated_NX = qkv_NX if query_norm_D is None else torch.empty_like(qkv_NX)
        rotary.rotate(qkv_NX, cos_ND, sin_ND, norms, shape, rotated_NX)
        out_NHD, logs_HN = _forwards(packed, scale, *shape.split(rotated_NX))
        ctx.save_for_backward(qkv_NX, cos_ND, sin_ND, *norms, out_NHD, logs_HN)
        ctx.shape, ctx.packed, ctx.scale = shape, packed, scale
        return out_NHD.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from sleuth.model.kernels import rotary

        qkv_NX, cos_ND, sin_ND, query_norm_D, key_norm_D, out_NHD, logs_HN = ctx.saved_tensors
        norms, given = (query_norm_D, key_norm_D), (qkv_NX, cos_ND, sin_ND)
        rotated_NX = qkv_NX
        if query_norm_D is not None:
            rotated_NX = torch.empty_like(qkv_NX)
            rotary.rotate(*given, norms, ctx.shape, rotated_NX)
        upstream_NHD = gradients[0].view(out_NHD.shape)
        query_NHD, key_NKD, value_NKD = ctx.shape.split(rotated_NX)
        to_states = _backwards(ctx.packed, ctx.scale, upstream_NHD, query_NHD, key_NKD, value_NKD, out_NHD, logs_HN)
        to_qkv_NX, *to_norms = rotary.rotate_back(*to_states, *given, norms, ctx.shape)
        return to_qkv_NX, None, None, *to_norms, None, None, None


def _forwards(
    packed: Flash, scale: float, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor
) -> tuple[Tensor, Tensor]:
    """The attention, and the logarithm of each softmax's sum."""
    from sleuth.model.kernels import attention

    tokens, heads, width = query_NHD.shape
    out_NHD = torch.empty(tokens, heads, width, dtype=query_NHD.dtype, device=query_NHD.device)
    logs_HN = torch.empty(heads, tokens, dtype=torch.float32, device=query_NHD.device)
    tiles = packed.tiles(attention.tile_queries(heads, key_NKD.shape[1]))
    pages = (key_NKD[:, :, None], value_NKD[:, :, None])
    attention.prefill(query_NHD, out_NHD, *pages, None, tiles, scale, logs_HN)
    return out_NHD, logs_HN


def _backwards(
    packed: Flash, scale: float, upstream_NHD: Tensor, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor,
    out_NHD: Tensor, logs_HN: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values."""
    from sleuth.model.kernels import attention_back

    states, upstream_NHD = (query_NHD, key_NKD, value_NKD), upstream_NHD.contiguous()
    width = query_NHD.shape[-1]
    plan = attention_back.plan_for(attention_back.TO_QUERIES, width)
    tiles = packed.tiles(plan.queries)
    to_query_NHD, lost_HN = attention_back.to_queries(
        *states, out_NHD, upstream_NHD, logs_HN, packed.starts_R1, tiles, scale, plan
    )
    plan = attention_back.plan_for(attention_back.TO_KEYS, width)
    tiles = packed.tiles(plan.keys, towards_end=True)
    to_key_NKD, to_value_NKD = attention_back.to_keys(
        *states, upstream_NHD, logs_HN, lost_HN, packed.starts_R1, tiles, scale, plan
    )
    return to_query_NHD, to_key_NKD, to_value_NKD
