"""Attention of every policy: a Hugging Face attention function that delegates to the layout of the call.

Which keys a token sees is a property of the call, not of the model, so it arrives as the keyword argument `layout` of
the forward call, never through a global. On a GPU in half precision packed attention uses the engine's own kernels:
the forward pass is bit-identical to the engine's, and the backward pass sums in a fixed order, except
where rows share prefixes (`SharedPrefixLayout`).

Suffixes: N packed tokens, X query, key and value heads side by side, R rows (sequences), L tokens of the longest row,
H heads, K key heads, D head width, T tiles, E tokens of all rows where rows share prefixes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers import PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

if TYPE_CHECKING:
    from sleuth.model.kernels.rotary import HeadLayout, Norms

NAME = "sleuth"
LENGTH_RATIO = 1.25  # between the longest and the shortest row of a padded block
UNSUPPORTED = ("sliding_window", "softcap", "s_aux")  # arguments that some models pass to their attention
MAX_HEAD_DIM = 256  # the largest whose blocks fit in shared memory


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Number of layers and heads, head width, and cache dtype of a model."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, config: PretrainedConfig, dtype: torch.dtype) -> "AttentionShape":
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return cls(config.num_hidden_layers, config.num_attention_heads, kv_heads, head_dim, dtype)

    @property
    def bytes_per_token(self) -> int:
        """Size of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of queries, one program each; all int32.

    A tile has `count_T` queries at packed positions from `first_T` on, of the sequence in slot `slot_T`. The first
    query is at position `position_T` of its sequence; each query sees its sequence up to itself.
    """

    first_T: Tensor
    slot_T: Tensor
    position_T: Tensor
    count_T: Tensor


def split_into_tiles(first: int, slot: int, position: int, count: int, queries: int) -> np.ndarray:
    """Split `count` queries of one sequence into tiles of at most `queries`; return the columns of Tiles."""
    offset = np.arange(0, count, queries, dtype=np.int32)
    return np.stack(
        [first + offset, np.full_like(offset, slot), position + offset, np.minimum(queries, count - offset)]
    )


class AttentionLayout(Protocol):
    """Decides which keys each packed token sees, and computes the attention."""

    def attend(self, layer: int, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:
        """Attention output of one layer, N x H x D."""
        ...


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: AttentionLayout,
    scaling: float,
    **others: Any,
) -> tuple[Tensor, None]:
    """Implement the Hugging Face attention interface for one packed row (batch size 1)."""
    if attention_mask is not None:
        raise ValueError("the model passes its own attention mask, which is not supported")
    if passed := [name for name in UNSUPPORTED if others.get(name) is not None]:
        raise ValueError(f"the model's attention uses {', '.join(passed)}, which is not supported")
    query_NHD, key_NHD, value_NHD = (states[0].transpose(0, 1) for states in (query, key, value))
    layer = module.layer_idx
    assert isinstance(layer, int)  # noqa: S101  set by every Hugging Face attention module
    return layout.attend(layer, query_NHD, key_NHD, value_NHD, scaling)[None], None


ALL_ATTENTION_FUNCTIONS.register(NAME, attention)


class PackedLayout:
    """Sequences end to end without padding; each token sees itself and its predecessors in its sequence.

    Without the kernels, neighbouring rows of similar length are padded to blocks: little padding, few calls.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._lengths, self._device = lengths, device
        self.positions_N = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])).to(device)

    def attend(self, layer: int, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:  # noqa: ARG002
        if supports_flash(query_NHD):
            return self.flash.attend(query_NHD, key_NHD, value_NHD, scale)
        tokens = [block.tokens for block in self._blocks]
        parts = (states.split(tokens) for states in (query_NHD, key_NHD, value_NHD))
        return torch.cat([block.attend(*states, scale) for block, *states in zip(self._blocks, *parts, strict=True)])

    @cached_property
    def flash(self) -> "PackedFlash":
        """Layout of the same sequences for the Triton kernels."""
        return PackedFlash(self._lengths, self._device)

    @cached_property
    def _blocks(self) -> "list[_PaddedBlock]":
        blocks = [[self._lengths[0]]]
        for length in self._lengths[1:]:
            shortest, longest = min(*blocks[-1], length), max(*blocks[-1], length)
            if longest > LENGTH_RATIO * shortest:
                blocks.append([])
            blocks[-1].append(length)
        return [_PaddedBlock(block, self._device) for block in blocks]


class SharedPrefixLayout:
    """Sequences whose common prefixes are packed once; `place_E` is the packed place of each token of the sequences.

    Only the attention is computed per sequence: every other operation of a model works on single tokens. On a GPU, the
    backward pass adds the gradients of shared tokens with atomics, so they are not reproducible bit for bit.
    """

    def __init__(self, lengths: Sequence[int], place_E: Tensor) -> None:
        self._rows, self._place_E = PackedLayout(lengths, place_E.device), place_E
        # The first sequence that has a packed token: places are numbered in the order of their first appearance.
        first_E = torch.cat([place_E.new_tensor([-1]), place_E.cummax(0).values[:-1]]) < place_E
        self._first_N = first_E.nonzero()[:, 0]
        self.positions_N = self._rows.positions_N[self._first_N]

    def attend(self, layer: int, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:
        packed = (query_NHD, key_NHD, value_NHD)
        query_EHD, key_EHD, value_EHD = (states.index_select(0, self._place_E) for states in packed)
        out_EHD = self._rows.attend(layer, query_EHD, key_EHD, value_EHD, scale)
        unshared: Tensor = _SelectUnique.apply(out_EHD, self._first_N)  # type: ignore[no-untyped-call]
        return unshared


class _PaddedBlock:
    """Rows padded on the right to one length; the causal mask hides the padding."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        lengths_R = torch.tensor(lengths, device=device)
        self.tokens = sum(lengths)
        self._rows, self._longest = len(lengths), max(lengths)
        row_N = torch.repeat_interleave(torch.arange(self._rows, device=device), lengths_R)
        offsets_R = torch.cumsum(lengths_R, 0) - lengths_R
        self._index_N = row_N * self._longest + torch.arange(self.tokens, device=device) - offsets_R[row_N]

    def attend(self, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:
        padded = []
        for states in (query_NHD, key_NHD, value_NHD):
            flat = states.new_zeros(self._rows * self._longest, *states.shape[1:]).index_copy(0, self._index_N, states)
            padded.append(flat.view(self._rows, self._longest, *states.shape[1:]).transpose(1, 2))
        query_RHLD, key_RHLD, value_RHLD = padded
        grouped = query_RHLD.shape[1] != key_RHLD.shape[1]
        out_RHLD = scaled_dot_product_attention(
            query_RHLD, key_RHLD, value_RHLD, is_causal=True, scale=scale, enable_gqa=grouped
        )
        flat = out_RHLD.transpose(1, 2).flatten(0, 1)
        unpadded: Tensor = _SelectUnique.apply(flat, self._index_N)  # type: ignore[no-untyped-call]
        return unpadded


class _SelectUnique(torch.autograd.Function):
    """`index_select` for distinct indices, with a copy instead of a slow scatter-add in the backward pass."""

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


def supports_flash(query_NHD: Tensor) -> bool:
    """Whether the packed attention kernels support these states."""
    return query_NHD.is_cuda and query_NHD.dtype.itemsize == 2 and supports_head_dim(query_NHD.shape[-1])


def supports_head_dim(head_dim: int) -> bool:
    return head_dim % 8 == 0 and head_dim <= MAX_HEAD_DIM


class PackedFlash:
    """Packed causal attention with Triton kernels; one instance serves all layers of a pass."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.starts_R1 = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        self._lengths, self._device = lengths, device
        self._tiles = dict[tuple[int, bool], Tiles]()

    def attend(self, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        attended: Tensor = _Attend.apply(query_NHD, key_NKD, value_NKD, self, scale)  # type: ignore[no-untyped-call]
        return attended

    def attend_rotated(
        self, qkv_NX: Tensor, cos_ND: Tensor, sin_ND: Tensor, norms: "Norms", heads: "HeadLayout", scale: float
    ) -> Tensor:
        """Norm and rotate queries and keys, then attend; returns N x (H * D). Without norms, overwrites `qkv_NX`."""
        call = (qkv_NX, cos_ND, sin_ND, *norms, heads, self, scale)
        attended: Tensor = _AttendRotated.apply(*call)  # type: ignore[no-untyped-call]
        return attended

    def tiles(self, tokens: int, *, by_tokens_after: bool = False) -> Tiles:
        """Split each row into tiles of `tokens` tokens, ordered by the number of tokens before or after them."""
        if (tokens, by_tokens_after) not in self._tiles:
            starts = accumulate(self._lengths[:-1], initial=0)
            rows = enumerate(zip(starts, self._lengths, strict=True))
            whole = np.concatenate(
                [split_into_tiles(start, row, 0, length, tokens) for row, (start, length) in rows], axis=1
            )
            work = whole[2] - np.asarray(self._lengths)[whole[1]] if by_tokens_after else whole[2]
            ordered = np.ascontiguousarray(whole[:, np.argsort(work, kind="stable")])
            self._tiles[tokens, by_tokens_after] = Tiles(*torch.from_numpy(ordered).to(self._device))
        return self._tiles[tokens, by_tokens_after]

    def forward(self, scale: float, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor) -> tuple[Tensor, Tensor]:
        """Attention output and the log-sum-exp of each softmax."""
        from sleuth.model.kernels import attention as forward_kernels

        tokens, heads, width = query_NHD.shape
        out_NHD = torch.empty(tokens, heads, width, dtype=query_NHD.dtype, device=query_NHD.device)
        logs_HN = torch.empty(heads, tokens, dtype=torch.float32, device=query_NHD.device)
        tiles = self.tiles(forward_kernels.tile_queries(heads, key_NKD.shape[1]))
        pages = (key_NKD[:, :, None], value_NKD[:, :, None])
        forward_kernels.prefill(query_NHD, out_NHD, *pages, None, tiles, scale, logs_HN)
        return out_NHD, logs_HN

    def backward(
        self, scale: float, upstream_NHD: Tensor, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor,
        out_NHD: Tensor, logs_HN: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        from sleuth.model.kernels import attention_backward as backward_kernels

        states, upstream_NHD = (query_NHD, key_NKD, value_NKD), upstream_NHD.contiguous()
        width = query_NHD.shape[-1]
        plan = backward_kernels.plan_for(backward_kernels.TO_QUERIES, width)
        tiles = self.tiles(plan.queries)
        to_query_NHD, delta_HN = backward_kernels.query_gradient(
            *states, out_NHD, upstream_NHD, logs_HN, self.starts_R1, tiles, scale, plan
        )
        plan = backward_kernels.plan_for(backward_kernels.TO_KEYS, width)
        tiles = self.tiles(plan.keys, by_tokens_after=True)
        to_key_NKD, to_value_NKD = backward_kernels.key_value_gradient(
            *states, upstream_NHD, logs_HN, delta_HN, self.starts_R1, tiles, scale, plan
        )
        return to_query_NHD, to_key_NKD, to_value_NKD


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, packed: PackedFlash, scale: float
    ) -> Tensor:
        states = tuple(each.contiguous() for each in (query_NHD, key_NKD, value_NKD))
        out_NHD, logs_HN = packed.forward(scale, *states)
        ctx.save_for_backward(*states, out_NHD, logs_HN)
        ctx.packed, ctx.scale = packed, scale
        return out_NHD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.packed.backward(ctx.scale, gradients[0], *ctx.saved_tensors), None, None


class _AttendRotated(torch.autograd.Function):
    """Attention on rotated heads; saves one QKV row per token: rotated in place or, with norms, the original."""

    @staticmethod
    def forward(
        ctx: Any, qkv_NX: Tensor, cos_ND: Tensor, sin_ND: Tensor, query_norm_D: Tensor | None,
        key_norm_D: Tensor | None, heads: "HeadLayout", packed: PackedFlash, scale: float,
    ) -> Tensor:  # fmt: skip
        from sleuth.model.kernels import rotary

        norms = query_norm_D, key_norm_D
        rotated_NX = qkv_NX if query_norm_D is None else torch.empty_like(qkv_NX)
        rotary.rotate(qkv_NX, cos_ND, sin_ND, norms, heads, rotated_NX)
        out_NHD, logs_HN = packed.forward(scale, *heads.split(rotated_NX))
        ctx.save_for_backward(qkv_NX, cos_ND, sin_ND, *norms, out_NHD, logs_HN)
        ctx.heads, ctx.packed, ctx.scale = heads, packed, scale
        return out_NHD.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from sleuth.model.kernels import rotary

        qkv_NX, cos_ND, sin_ND, query_norm_D, key_norm_D, out_NHD, logs_HN = ctx.saved_tensors
        norms, inputs = (query_norm_D, key_norm_D), (qkv_NX, cos_ND, sin_ND)
        rotated_NX = qkv_NX
        if query_norm_D is not None:
            rotated_NX = torch.empty_like(qkv_NX)
            rotary.rotate(*inputs, norms, ctx.heads, rotated_NX)
        upstream_NHD = gradients[0].view(out_NHD.shape)
        packed: PackedFlash = ctx.packed
        query_NHD, key_NKD, value_NKD = ctx.heads.split(rotated_NX)
        to_states = packed.backward(ctx.scale, upstream_NHD, query_NHD, key_NKD, value_NKD, out_NHD, logs_HN)
        to_qkv_NX, *to_norms = rotary.rotate_backward(*to_states, *inputs, norms, ctx.heads)
        return to_qkv_NX, None, None, *to_norms, None, None, None
