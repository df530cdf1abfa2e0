"""The attention of models that run through their own Hugging Face forward pass: keys and values go to pages.

Suffixes: N packed tokens, H heads, K key heads, D head width.
"""

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from sleuth.engines.paged.batch import Batch
from sleuth.engines.paged.cache import Cache


@dataclass(frozen=True, slots=True)
class Pagewise:
    """A layout for `model.attention`; `kernels` is the module that computes: Triton's, or the plain one."""

    kernels: ModuleType
    batch: Batch
    cache: Cache

    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        self.kernels.store(key_NKD, value_NKD, keys, values, self.batch.addresses_N)
        return attend(self.kernels, query_NHD, keys, values, self.batch, self.cache, scale)


def attend(
    kernels: ModuleType, query_NHD: Tensor, keys: Tensor, values: Tensor, batch: Batch, cache: Cache, scale: float
) -> Tensor:
    """Attention over pages that hold the batch's own keys already: lanes by one kernel, segments by another."""
    lanes = len(batch.slots_B)
    # Zeros, since tokens that fill up a chunk belong to no tile, and what was there before may be no numbers.
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
