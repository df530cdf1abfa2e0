"""The forward pass of the Llama line of models over cached pages, with few kernels and the model's own parameters.

It computes what the Hugging Face module computes, rounding by rounding; only sums inside matrix products and attention
may be taken in another order.

Suffixes: N packed tokens, W model width, H query heads, D head width, C positions.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.engines.paged.batch import Batch
from sleuth.engines.paged.cache import Cache
from sleuth.engines.paged.kernels import pointwise
from sleuth.engines.paged.layout import attend
from sleuth.engines.paged.pages import PAGE
from sleuth.model.attention import AttentionShape
from sleuth.model.fused_layers import Projection, fuse_linears
from sleuth.model.kernels import attention
from sleuth.model.kernels import pointwise as shared


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    eps: float

    @classmethod
    def of(cls, module: Any) -> "_Norm":
        return cls(module.weight, module.variance_epsilon)

    def __call__(self, delta_NW: Tensor | None, residual_NW: Tensor) -> Tensor:
        return shared.add_rms_norm(delta_NW, residual_NW, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class _Layer:
    before_attention: _Norm
    queries_keys_values: Projection
    query_norm: _Norm | None
    key_norm: _Norm | None
    after_attention: Projection
    before_mlp: _Norm
    gate_and_up: Projection
    down: Projection

    @classmethod
    def of(cls, layer: Any) -> "_Layer":
        attends, mlp = layer.self_attn, layer.mlp
        query_norm, key_norm = (getattr(attends, name, None) for name in ("q_norm", "k_norm"))
        return cls(
            before_attention=_Norm.of(layer.input_layernorm),
            queries_keys_values=fuse_linears((attends.q_proj, attends.k_proj, attends.v_proj)),
            query_norm=None if query_norm is None else _Norm.of(query_norm),
            key_norm=None if key_norm is None else _Norm.of(key_norm),
            after_attention=fuse_linears((attends.o_proj,)),
            before_mlp=_Norm.of(layer.post_attention_layernorm),
            gate_and_up=fuse_linears((mlp.gate_proj, mlp.up_proj)),
            down=fuse_linears((mlp.down_proj,)),
        )


class Decoder:
    """Reads the parameters where they are: what the trainer writes into them in place, the next call computes with."""

    # Parameters whose storage was made in inference mode could not be trained any more.
    @torch.inference_mode(False)
    def __init__(self, model: PreTrainedModel, context: int) -> None:
        base: Any = model.base_model
        weight = base.norm.weight
        self._shape = AttentionShape.of(model.config, weight.dtype)
        self._scale: float = base.layers[0].self_attn.scaling
        self._embed: nn.Module = base.embed_tokens
        self._layers = [_Layer.of(layer) for layer in base.layers]
        self._norm = _Norm.of(base.norm)
        positions_C = torch.arange(-(-context // PAGE) * PAGE, device=weight.device)
        cos_1CD, sin_1CD = base.rotary_emb(weight, positions_C[None])
        self._cos_CD, self._sin_CD = cos_1CD[0].contiguous(), sin_1CD[0].contiguous()
        self._model = model
        self._addresses = _addresses(model)

    def moved(self) -> bool:
        """Whether the model's parameters are no longer those, or no longer where, this decoder reads."""
        return _addresses(self._model) != self._addresses

    @torch.no_grad()
    def hidden(self, batch: Batch, cache: Cache) -> Tensor:
        """The last hidden states of all packed tokens, whose keys and values go to the cache."""
        residual_NW = self._embed(batch.ids_N)
        delta_NW = None
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            normed_NW = layer.before_attention(delta_NW, residual_NW)
            query_NHD = self._rotate_and_store(layer, layer.queries_keys_values(normed_NW), batch, keys, values)
            delta_NW = layer.after_attention(
                attend(attention, query_NHD, keys, values, batch, cache, self._scale).flatten(1)
            )
            normed_NW = layer.before_mlp(delta_NW, residual_NW)
            delta_NW = layer.down(shared.silu_mul(layer.gate_and_up(normed_NW)))
        return self._norm(delta_NW, residual_NW)

    def _rotate_and_store(self, layer: _Layer, qkv_NX: Tensor, batch: Batch, keys: Tensor, values: Tensor) -> Tensor:
        query_norm, key_norm = layer.query_norm, layer.key_norm
        return pointwise.rotate_and_store(
            qkv_NX,
            self._cos_CD,
            self._sin_CD,
            batch.positions_N,
            batch.addresses_N,
            keys,
            values,
            None if query_norm is None else query_norm.weight,
            None if key_norm is None else key_norm.weight,
            0.0 if query_norm is None else query_norm.eps,
            self._shape.heads,
            self._shape.kv_heads,
        )


def _addresses(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
