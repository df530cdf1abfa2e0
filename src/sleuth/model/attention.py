"""The attention of every policy: a Hugging Face attention function that asks the layout of the call.

Which tokens see which is not a property of the model but of the call, so it arrives as the keyword
`layout` of the forward call, through Hugging Face's own keyword arguments, never through a global.

Suffixes: N packed tokens, R rows (sequences), L tokens of the longest row, H heads, D head width.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "sleuth"


class Layout(Protocol):
    """Says which keys each packed token sees, and computes the attention."""

    def attend(self, layer: int, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:
        """Attention output, N x H x D, for one layer."""
        ...


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001  the layout decides what is seen
    *,
    layout: Layout,
    scaling: float,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """Hugging Face's attention signature for one packed row (batch of 1): heads before tokens in, after them out."""
    query_NHD, key_NHD, value_NHD = (states[0].transpose(0, 1) for states in (query, key, value))
    layer = module.layer_idx
    assert isinstance(layer, int)  # noqa: S101  set by every Hugging Face attention module
    return layout.attend(layer, query_NHD, key_NHD, value_NHD, scaling)[None], None


class Packed:
    """Sequences laid end to end without padding; each token sees itself and what precedes it in its sequence.

    Linear layers run on the packed tokens. Only here are rows padded on the right, where causality alone keeps
    padding out of sight, so that one kernel call serves all rows.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        lengths_R = torch.tensor(lengths, device=device)
        self.rows, self.longest = len(lengths), max(lengths)
        starts_R = torch.arange(self.rows, device=device) * self.longest
        row_N = torch.repeat_interleave(torch.arange(self.rows, device=device), lengths_R)
        offsets_R = torch.cumsum(lengths_R, 0) - lengths_R
        self.positions_N = torch.arange(len(row_N), device=device) - offsets_R[row_N]
        self._place_N = starts_R[row_N] + self.positions_N

    def attend(self, layer: int, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:  # noqa: ARG002
        query_RHLD, key_RHLD, value_RHLD = (self._pad(states) for states in (query_NHD, key_NHD, value_NHD))
        grouped = query_RHLD.shape[1] != key_RHLD.shape[1]
        out_RHLD = scaled_dot_product_attention(
            query_RHLD, key_RHLD, value_RHLD, is_causal=True, scale=scale, enable_gqa=grouped
        )
        out_RLHD = out_RHLD.transpose(1, 2)
        return _take(out_RLHD.reshape(self.rows * self.longest, *out_RLHD.shape[2:]), self._place_N)

    def _pad(self, states_NHD: Tensor) -> Tensor:
        flat = states_NHD.new_zeros(self.rows * self.longest, *states_NHD.shape[1:])
        flat = flat.index_copy(0, self._place_N, states_NHD)
        return flat.view(self.rows, self.longest, *states_NHD.shape[1:]).transpose(1, 2)


class _Take(torch.autograd.Function):
    """index_select for indices that are all different: its backward is a copy, not a slow addition."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = source.shape[0]
        return source.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        (gradient,) = gradients
        return gradient.new_zeros(ctx.rows, *gradient.shape[1:]).index_copy(0, index, gradient), None


def _take(source: Tensor, index: Tensor) -> Tensor:
    taken: Tensor = _Take.apply(source, index)  # type: ignore[no-untyped-call]
    return taken


ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
