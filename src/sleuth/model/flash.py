"""Packed attention on a GPU in half precision: the kernel that prefills, and PyTorch's flash attention backwards.

The forward pass is the engine's own, rounding by rounding, so that what the engine sampled and what the trainer scores
differ by the order of sums alone. Packed keys are pages of one token.

Suffixes: N packed tokens, R rows (sequences), L tokens of the longest row, H heads, K key heads, D head width.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sleuth.model.tiles import Tiles, cut

WIDEST = 256  # head width that flash attention's backward pass takes


def takes(query_NHD: Tensor) -> bool:
    """Whether these states can be attended to here."""
    width = query_NHD.shape[-1]
    return query_NHD.is_cuda and query_NHD.dtype.itemsize == 2 and width % 8 == 0 and width <= WIDEST


class Flash:
    """Sequences laid end to end, each token of which sees what precedes it; made once for all layers of a pass."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._lengths, self._device = lengths, device
        starts = [0, *accumulate(lengths)]
        self.longest = max(lengths)
        self.starts_R1 = torch.tensor(starts, dtype=torch.int32, device=device)
        self.table_RL = self.starts_R1[:-1, None] + torch.arange(self.longest, dtype=torch.int32, device=device)
        self.tiles = lru_cache(maxsize=1)(self._tiles)

    def attend(self, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        attended: Tensor = _Attend.apply(query_NHD, key_NKD, value_NKD, self, scale)  # type: ignore[no-untyped-call]
        return attended

    def _tiles(self, queries: int) -> Tiles:
        starts = accumulate(self._lengths[:-1], initial=0)
        rows = [
            cut(start, row, 0, length, queries)
            for row, (start, length) in enumerate(zip(starts, self._lengths, strict=True))
        ]
        return Tiles(*torch.from_numpy(np.concatenate(rows, axis=1)).to(self._device))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, packed: Flash, scale: float) -> Tensor:
        from sleuth.model.kernels import attention

        query_NHD, key_NKD, value_NKD = (states.contiguous() for states in (query_NHD, key_NKD, value_NKD))
        tokens, heads, _ = query_NHD.shape
        out_NHD = torch.empty_like(query_NHD)
        logs_HN = torch.empty(heads, tokens, dtype=torch.float32, device=query_NHD.device)
        tiles = packed.tiles(attention.tile_queries(heads, key_NKD.shape[1]))
        pages = (key_NKD[:, :, None], value_NKD[:, :, None])
        attention.prefill(query_NHD, out_NHD, *pages, packed.table_RL, tiles, scale, logs_HN)
        ctx.save_for_backward(query_NHD, key_NKD, value_NKD, out_NHD, logs_HN)
        ctx.packed, ctx.scale = packed, scale
        return out_NHD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query_NHD, key_NKD, value_NKD, out_NHD, logs_HN = ctx.saved_tensors
        packed = ctx.packed
        # Nothing is dropped out, so no random state was needed forwards.
        state = torch.zeros(2, dtype=torch.uint64, device=query_NHD.device)
        unused = torch.empty(0, device=query_NHD.device)
        return (
            *torch.ops.aten._flash_attention_backward(
                gradients[0].contiguous(), query_NHD, key_NKD, value_NKD, out_NHD, logs_HN,
                packed.starts_R1, packed.starts_R1, packed.longest, packed.longest, 0.0, True, state, unused,
                scale=ctx.scale,
            ),
            None,
            None,
        )  # fmt: skip
