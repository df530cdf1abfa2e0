"""The fused forward pass of Llama-family models over the paged cache, with few kernels and the model's own parameters.

It rounds exactly as the Hugging Face modules do; only sums inside matrix products and attention may differ in order.

Suffixes: N packed tokens, W model width, H query heads, D head width, C positions.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.engines.paged import triton_backend
from sleuth.engines.paged.batch import Batch
from sleuth.engines.paged.kv_cache import KVCache, attend
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.model.attention import AttentionShape
from sleuth.model.fused_layers import Projection, fuse_linears
from sleuth.model.kernels import attention, pointwise


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    eps: float

    @classmethod
    def of(cls, module: Any) -> "_Norm":
        return cls(module.weight, module.variance_epsilon)

    def __call__(self, delta_NW: Tensor | None, residual_NW: Tensor) -> Tensor:
        return pointwise.add_rms_norm(delta_NW, residual_NW, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: _Norm
    qkv: Projection
    query_norm: _Norm | None
    key_norm: _Norm | None
    attention_out: Projection
    mlp_norm: _Norm
    gate_up: Projection
    down: Projection

    @classmethod
    def of(cls, layer: Any) -> "_Layer":
        attn, mlp = layer.self_attn, layer.mlp
        query_norm, key_norm = (getattr(attn, name, None) for name in ("q_norm", "k_norm"))
        return cls(
            input_norm=_Norm.of(layer.input_layernorm),
            qkv=fuse_linears((attn.q_proj, attn.k_proj, attn.v_proj)),
            query_norm=None if query_norm is None else _Norm.of(query_norm),
            key_norm=None if key_norm is None else _Norm.of(key_norm),
            attention_out=fuse_linears((attn.o_proj,)),
            mlp_norm=_Norm.of(layer.post_attention_layernorm),
            gate_up=fuse_linears((mlp.gate_proj, mlp.up_proj)),
            down=fuse_linears((mlp.down_proj,)),
        )


class Decoder:
    """Fused decoder that reads the model's parameters in place; the trainer's updates take effect at the next call."""

    # Storage created in inference mode could not be trained any more.
    @torch.inference_mode(False)
    def __init__(self, model: PreTrainedModel, context: int) -> None:
        base: Any = model.base_model
        weight = base.norm.weight
        self._shape = AttentionShape.of(model.config, weight.dtype)
        self._scale: float = base.layers[0].self_attn.scaling
        self._embed: nn.Module = base.embed_tokens
        self._layers = [_Layer.of(layer) for layer in base.layers]
        self._norm = _Norm.of(base.norm)
        positions_C = torch.arange(-(-context // PAGE_SIZE) * PAGE_SIZE, device=weight.device)
        cos_1CD, sin_1CD = base.rotary_emb(weight, positions_C[None])
        self._cos_CD, self._sin_CD = cos_1CD[0].contiguous(), sin_1CD[0].contiguous()
        self._model = model
        self._addresses = _addresses(model)

    def parameters_moved(self) -> bool:
        """Whether the model's parameters have moved from the addresses that this decoder reads."""
        return _addresses(self._model) != self._addresses

    @torch.no_grad()
    def hidden_states(self, batch: Batch, cache: KVCache) -> Tensor:
        """Compute the last hidden states of all packed tokens, and store their keys and values."""
        residual_NW = self._embed(batch.ids_N)
        delta_NW = None
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            normed_NW = layer.input_norm(delta_NW, residual_NW)
            query_norm, key_norm = layer.query_norm, layer.key_norm
            query_NHD = triton_backend.rotate_and_store(
                layer.qkv(normed_NW), self._cos_CD, self._sin_CD, batch.positions_N, batch.addresses_N, keys, values,
                None if query_norm is None else query_norm.weight, None if key_norm is None else key_norm.weight,
                0.0 if query_norm is None else query_norm.eps, self._shape.heads, self._shape.kv_heads,
            )  # fmt: skip
            attended_NHD = attend(attention, query_NHD, keys, values, batch, cache, self._scale)
            delta_NW = layer.attention_out(attended_NHD.flatten(1))
            normed_NW = layer.mlp_norm(delta_NW, residual_NW)
            delta_NW = layer.down(pointwise.silu_mul(layer.gate_up(normed_NW)))
        return self._norm(delta_NW, residual_NW)


def _addresses(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
