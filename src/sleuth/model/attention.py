"""The attention of every policy: a Hugging Face attention function that asks the layout of the call.

Which tokens see which is not a property of the model but of the call, so it arrives as the keyword
`layout` of the forward call, through Hugging Face's own keyword arguments, never through a global.

Suffixes: N packed tokens, R rows (sequences), L tokens of the longest row, H heads, D head width.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sleuth.model import flash

NAME = "sleuth"
LIKENESS = 1.25
# What some models pass to their attention that ours does not compute.
UNKNOWN = ("sliding_window", "softcap", "s_aux")


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
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float,
    **others: Any,
) -> tuple[Tensor, None]:
    """Hugging Face's attention signature for one packed row (batch of 1): heads before tokens in, after them out."""
    if attention_mask is not None:
        raise ValueError("the model masks attention in a way of its own, which is not computed here")
    if meant := [name for name in UNKNOWN if others.get(name) is not None]:
        raise ValueError(f"the model's attention asks for {', '.join(meant)}, which is not computed here")
    query_NHD, key_NHD, value_NHD = (states[0].transpose(0, 1) for states in (query, key, value))
    layer = module.layer_idx
    assert isinstance(layer, int)  # noqa: S101  set by every Hugging Face attention module
    return layout.attend(layer, query_NHD, key_NHD, value_NHD, scaling)[None], None


class Packed:
    """Sequences laid end to end without padding; each token sees itself and what precedes it in its sequence.

    On a GPU in half precision the engine's own kernel attends. Elsewhere rows are padded, and only to the longest of
    those beside them that are of like length: a kernel call for each such block wastes little on padding and few calls
    on short rows.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._lengths, self._device = lengths, device
        self.positions_N = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])).to(device)

    def attend(self, layer: int, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:  # noqa: ARG002
        if flash.takes(query_NHD):
            return self.flash.attend(query_NHD, key_NHD, value_NHD, scale)
        tokens = [block.tokens for block in self._blocks]
        parts = (states.split(tokens) for states in (query_NHD, key_NHD, value_NHD))
        return torch.cat([block.attend(*states, scale) for block, *states in zip(self._blocks, *parts, strict=True)])

    @cached_property
    def flash(self) -> flash.Flash:
        """The same sequences, as the kernels attend to them."""
        return flash.Flash(self._lengths, self._device)

    @cached_property
    def _blocks(self) -> "list[_Block]":
        return [_Block(block, self._device) for block in _alike(self._lengths)]


class _Block:
    """Rows padded on the right to one length, where causality alone keeps the padding out of sight."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        lengths_R = torch.tensor(lengths, device=device)
        self.tokens = sum(lengths)
        self._rows, self._longest = len(lengths), max(lengths)
        row_N = torch.repeat_interleave(torch.arange(self._rows, device=device), lengths_R)
        offsets_R = torch.cumsum(lengths_R, 0) - lengths_R
        self._place_N = row_N * self._longest + torch.arange(self.tokens, device=device) - offsets_R[row_N]

    def attend(self, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:
        query_RHLD, key_RHLD, value_RHLD = (self._pad(states) for states in (query_NHD, key_NHD, value_NHD))
        grouped = query_RHLD.shape[1] != key_RHLD.shape[1]
        out_RHLD = scaled_dot_product_attention(
            query_RHLD, key_RHLD, value_RHLD, is_causal=True, scale=scale, enable_gqa=grouped
        )
        return _take(out_RHLD.transpose(1, 2).flatten(0, 1), self._place_N)

    def _pad(self, states_NHD: Tensor) -> Tensor:
        flat = states_NHD.new_zeros(self._rows * self._longest, *states_NHD.shape[1:])
        flat = flat.index_copy(0, self._place_N, states_NHD)
        return flat.view(self._rows, self._longest, *states_NHD.shape[1:]).transpose(1, 2)


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Neighbouring rows in blocks within which no row is longer than another by more than LIKENESS."""
    blocks = [[lengths[0]]]
    for length in lengths[1:]:
        shortest, longest = min(*blocks[-1], length), max(*blocks[-1], length)
        if longest > LIKENESS * shortest:
            blocks.append([])
        blocks[-1].append(length)
    return blocks


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
