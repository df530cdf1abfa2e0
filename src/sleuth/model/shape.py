"""The heads of a model, and with them how much a cached token takes."""

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers, heads and their width, as the config says."""

    layers: int
    heads: int
    key_heads: int
    width: int
    dtype: torch.dtype

    @classmethod
    def of(cls, config: PretrainedConfig, dtype: torch.dtype) -> "Shape":
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return cls(config.num_hidden_layers, config.num_attention_heads, key_heads, width, dtype)

    @property
    def token_bytes(self) -> int:
        """Key and value of one token in all layers."""
        return 2 * self.layers * self.key_heads * self.width * self.dtype.itemsize
