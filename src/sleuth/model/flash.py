"""Packed attention on a GPU in half precision: the kernel that prefills, and PyTorch's flash attention backwards.

The forward pass is the engine's own, rounding by rounding, so that what the engine sampled and what the trainer scores
differ in no bit. Packed keys are pages of one token.

Suffixes: N packed tokens, X query, key and value heads side by side, R rows (sequences), H heads, K key heads,
D head width.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sleuth.model.tiles import Tiles, cut

if TYPE_CHECKING:
    from sleuth.model.kernels.rotary import Heads, Norms

WIDEST = 256  # head width that flash attention's backward pass takes


def takes(query_NHD: Tensor) -> bool:
    """Whether these states can be attended to here."""
    return query_NHD.is_cuda and query_NHD.dtype.itemsize == 2 and takes_width(query_NHD.shape[-1])


def takes_width(width: int) -> bool:
    return width % 8 == 0 and width <= WIDEST


class Flash:
    """Sequences laid end to end, each token of which sees what precedes it; made once for all layers of a pass."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.lengths, self.longest, self._device = lengths, max(lengths), device
        self.starts_R1 = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        # Pages from a sequence's first token on: the slot of a sequence is the number of that token.
        self.table_N1 = torch.arange(sum(lengths), dtype=torch.int32, device=device)[:, None]
        # The random state of a dropout that there is not.
        self.undropped = torch.zeros(2, dtype=torch.uint64, device=device), torch.empty(0, device=device)
        self.tiles = lru_cache(maxsize=1)(self._tiles)

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

    def _tiles(self, queries: int) -> Tiles:
        starts = accumulate(self.lengths[:-1], initial=0)
        rows = [
            cut(start, start, 0, length, queries) for start, length in zip(starts, self.lengths, strict=True)
        ]  # fmt: skip
        return Tiles(*torch.from_numpy(np.concatenate(rows, axis=1)).to(self._device))


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
    attention.prefill(query_NHD, out_NHD, *pages, packed.table_N1, tiles, scale, logs_HN)
    return out_NHD, logs_HN


def _backwards(
    packed: Flash, scale: float, upstream_NHD: Tensor, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor,
    out_NHD: Tensor, logs_HN: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values."""
    if not takes(query_NHD):
        return _by_rows(packed.lengths, scale, upstream_NHD, query_NHD, key_NKD, value_NKD, out_NHD, logs_HN)
    to_query_NHD, to_key_NKD, to_value_NKD = torch.ops.aten._flash_attention_backward(
        upstream_NHD.contiguous(), query_NHD, key_NKD, value_NKD, out_NHD, logs_HN,
        packed.starts_R1, packed.starts_R1, packed.longest, packed.longest, 0.0, True, *packed.undropped, scale=scale,
    )  # fmt: skip
    return to_query_NHD, to_key_NKD, to_value_NKD


def _by_rows(
    lengths: Sequence[int], scale: float, upstream_NHD: Tensor, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor,
    out_NHD: Tensor, logs_HN: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The same in plain form, where flash attention is not to be had: all weights of a sequence at once, in fp32."""
    group = query_NHD.shape[1] // key_NKD.shape[1]
    key_NHD, value_NHD = (each.repeat_interleave(group, 1) for each in (key_NKD, value_NKD))
    found = []
    whole = (upstream_NHD, query_NHD, key_NHD, value_NHD, out_NHD, logs_HN.t())
    for row in zip(*(each.float().split(list(lengths)) for each in whole), strict=True):
        upstream, query, key, value, out, logs = row
        weight_HLL = (torch.einsum("qhd,khd->hqk", query, key) * scale - logs.t()[:, :, None]).exp().tril()
        lost_HL1 = (upstream * out).sum(-1).t()[:, :, None]
        to_score_HLL = weight_HLL * (torch.einsum("qhd,khd->hqk", upstream, value) - lost_HL1) * scale
        products = ("hqk,khd->qhd", to_score_HLL, key), ("hqk,qhd->khd", to_score_HLL, query)
        found.append([torch.einsum(*each) for each in (*products, ("hqk,qhd->khd", weight_HLL, upstream))])
    together = (torch.cat(parts).to(query_NHD.dtype) for parts in zip(*found, strict=True))
    to_query_NHD, to_key_NHD, to_value_NHD = together
    to_key_NKD, to_value_NKD = (each.unflatten(1, (-1, group)).sum(2) for each in (to_key_NHD, to_value_NHD))
    return to_query_NHD, to_key_NKD, to_value_NKD
