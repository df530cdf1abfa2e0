"""The paged key/value cache: its size, its tensors, and attention over it.

Suffixes: N packed tokens, B lanes, L layers, P pages, H heads, K key heads, C tokens of a page, D head width, S slots,
X pages of the longest sequence.
"""

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from sleuth.engines.paged.batch import Batch
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.errors import ConfigError
from sleuth.model.attention import AttentionShape
from sleuth.model.memory import device_memory

GIB = 2**30


def count_pages(model: PreTrainedModel, *, slots: int, context: int, share: float, prefill_tokens: int) -> int:
    """Number of pages that fit into a share of the device's memory, at most as many as all slots can fill."""
    parameter, config = next(model.parameters()), model.config
    page_bytes = PAGE_SIZE * AttentionShape.of(config, parameter.dtype).bytes_per_token
    per_sequence = -(-context // PAGE_SIZE)
    total, free = device_memory(parameter.device)
    pages = page_limit(page_bytes, slots=slots, context=context, budget=int(share * total))
    if pages < per_sequence:
        raise ConfigError(
            f"engine.memory = {share} of {total / GIB:.1f} GiB holds keys and values of {pages * PAGE_SIZE} tokens, "
            f"expected at least one context of {context}: raise it, or lower agent.context_tokens"
        )
    workspace = workspace_bytes(config, parameter.dtype.itemsize, slots=slots, prefill_tokens=prefill_tokens)
    if pages * page_bytes + workspace > free:
        raise ConfigError(
            f"engine.memory = {share} needs {pages * page_bytes / GIB:.1f} GiB for keys and values and "
            f"{workspace / GIB:.1f} GiB for the largest step, but {free / GIB:.1f} GiB are free: lower it, or "
            "engine.slots, engine.prefill_tokens or agent.context_tokens"
        )
    return pages


def page_limit(page_bytes: int, *, slots: int, context: int, budget: int) -> int:
    """Number of pages within a budget in bytes, at most as many as all slots can fill."""
    return min(budget // page_bytes, slots * -(-context // PAGE_SIZE))


def workspace_bytes(config: PretrainedConfig, itemsize: int, *, slots: int, prefill_tokens: int) -> int:
    """Memory of the largest step: activations of the widest layer, and fp32 logits."""
    widest: int = 3 * getattr(config, "intermediate_size", 4 * config.hidden_size) + 6 * config.hidden_size
    logits: int = 2 * slots * config.vocab_size * 4
    return (slots + prefill_tokens) * widest * itemsize + logits


class KVCache:
    """Keys, values, page table and lengths; allocated once and never moved, as captured graphs require.

    The last slot is for padding lanes.
    """

    def __init__(self, shape: AttentionShape, pages: int, slots: int, context: int, device: torch.device) -> None:
        size = (shape.layers, 2, pages, shape.kv_heads, PAGE_SIZE, shape.head_dim)
        states_L2PKCD = torch.zeros(size, dtype=shape.dtype, device=device)
        self.keys: list[Tensor] = [layer[0] for layer in states_L2PKCD]
        self.values: list[Tensor] = [layer[1] for layer in states_L2PKCD]
        self.table_SX = torch.zeros(slots + 1, -(-context // PAGE_SIZE), dtype=torch.int32, device=device)
        self.lengths_S = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._states = states_L2PKCD

    @property
    def padding_slot(self) -> int:
        return len(self.lengths_S) - 1

    def clear(self) -> None:
        """Zero the cache, because a leftover NaN would spread even to queries that mask it."""
        self._states.zero_()
        self.lengths_S.zero_()


@dataclass(frozen=True, slots=True)
class PagedLayout:
    """Attention layout for Hugging Face forward passes; `kernels` is the Triton or the PyTorch module."""

    kernels: ModuleType
    batch: Batch
    cache: KVCache

    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        self.kernels.store(key_NKD, value_NKD, keys, values, self.batch.addresses_N)
        return attend(self.kernels, query_NHD, keys, values, self.batch, self.cache, scale)


def attend(
    kernels: ModuleType, query_NHD: Tensor, keys: Tensor, values: Tensor, batch: Batch, cache: KVCache, scale: float
) -> Tensor:
    """Attend over pages that already hold the batch's keys, with the decode kernel for lanes and prefill for chunks."""
    lanes = len(batch.slots_B)
    # Zeros with chunks: padding tokens belong to no tile, and uninitialised memory may hold NaN.
    out_NHD = (torch.empty if batch.tiles is None else torch.zeros)(
        query_NHD.shape, dtype=query_NHD.dtype, device=query_NHD.device
    )
    if lanes:
        kernels.decode(
            query_NHD[:lanes], keys, values, cache.table_SX, batch.slots_B, cache.lengths_S, scale, out_NHD[:lanes]
        )
    if batch.tiles is not None:
        kernels.prefill(query_NHD, out_NHD, keys, values, cache.table_SX, batch.tiles, scale)
    return out_NHD
