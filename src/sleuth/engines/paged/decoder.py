"""The forward pass of the Llama line of models over cached pages, with few kernels and the model's own parameters.

It computes what the Hugging Face module computes, rounding by rounding; only sums inside matrix products and attention
may be taken in another order.

Suffixes: N packed tokens, W model width, H query heads, D head width, C positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from sleuth.engines.paged.batch import Batch
from sleuth.engines.paged.cache import Cache
from sleuth.engines.paged.kernels import pointwise
from sleuth.engines.paged.layout import attend
from sleuth.engines.paged.pages import PAGE
from sleuth.engines.paged.projection import Projection, joined
from sleuth.model.kernels import attention
from sleuth.model.kernels import pointwise as shared
from sleuth.model.shape import Shape

KINDS = ("llama", "mistral", "qwen2", "qwen3")
# Where the angle of a token depends on its position alone, not on how long its sequence is.
ROTARY = ("default", "linear", "llama3", "yarn")
MODEL = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def recognised(model: PreTrainedModel) -> str | None:
    """Why this decoder cannot run the model, or None where it can."""
    return next(_differences(model), None)


def _differences(model: PreTrainedModel) -> Iterator[str]:
    """The first is the reason; those after it may rest on what it denies."""
    kind: str = model.config.model_type
    base: Any = model.base_model
    if kind not in KINDS:
        yield f"the model is of type {kind}, expected one of {', '.join(KINDS)}"
    yield from _parts("the model", base, MODEL)
    rotary = base.rotary_emb
    if rotary.rope_type not in ROTARY:
        yield f"its rotary embedding is of type {rotary.rope_type}, expected one of {', '.join(ROTARY)}"
    width = Shape.of(model.config, base.norm.weight.dtype).width
    if 2 * rotary.inv_freq.numel() != width:
        yield f"its rotary embedding turns {2 * rotary.inv_freq.numel()} of a head's {width} numbers, expected all"
    for number, layer in enumerate(base.layers):
        yield from _parts(f"layer {number}", layer, LAYER)
        yield from _of_layer(f"layer {number}", layer, getattr(model.config, "sliding_window", None))
    norms = [module for name, module in base.named_modules() if name.split(".")[-1].endswith("norm")]
    for norm in norms:
        yield from _of_norm(norm, base.norm.weight.dtype)


def _parts(whole: str, module: nn.Module, expected: set[str]) -> Iterator[str]:
    parts = dict(module.named_children())
    if missing := expected - parts.keys():
        yield f"{whole} has no {min(missing)}"
    for name in parts.keys() - expected:
        if any(True for _ in parts[name].parameters()):
            yield f"{whole} has a part {name}, which is not computed here"


def _of_layer(name: str, layer: Any, window: int | None) -> Iterator[str]:
    attends, mlp = layer.self_attn, layer.mlp
    normed = HEAD_NORMS & dict(attends.named_children()).keys()
    yield from _parts(f"the attention of {name}", attends, ATTENTION | (HEAD_NORMS if normed else set()))
    yield from _parts(f"the MLP of {name}", mlp, MLP)
    if (window := getattr(attends, "sliding_window", window)) is not None:
        yield f"{name} sees a sliding window of {window} tokens, expected all of them"
    if not isinstance(mlp.act_fn, SiLUActivation | nn.SiLU):
        yield f"the MLP of {name} is activated by {type(mlp.act_fn).__name__}, expected silu"


def _of_norm(norm: nn.Module, dtype: torch.dtype) -> Iterator[str]:
    if not (type(norm).__name__.endswith("RMSNorm") and hasattr(norm, "variance_epsilon")):
        yield f"it norms with {type(norm).__name__}, expected an RMSNorm with variance_epsilon"
    elif isinstance(norm.weight, Tensor) and norm.weight.dtype != dtype:
        yield f"its norms are of types {norm.weight.dtype} and {dtype}, expected one type"


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    eps: float

    @classmethod
    def of(cls, module: Any) -> "_Norm":
        return cls(module.weight, module.variance_epsilon)

    def __call__(self, delta_NW: Tensor | None, residual_NW: Tensor) -> Tensor:
        return shared.add_norm(delta_NW, residual_NW, self.weight, self.eps)


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
            queries_keys_values=joined((attends.q_proj, attends.k_proj, attends.v_proj)),
            query_norm=None if query_norm is None else _Norm.of(query_norm),
            key_norm=None if key_norm is None else _Norm.of(key_norm),
            after_attention=joined((attends.o_proj,)),
            before_mlp=_Norm.of(layer.post_attention_layernorm),
            gate_and_up=joined((mlp.gate_proj, mlp.up_proj)),
            down=joined((mlp.down_proj,)),
        )


class Decoder:
    """Reads the parameters where they are: what the trainer writes into them in place, the next call computes with."""

    # Parameters whose storage was made in inference mode could not be trained any more.
    @torch.inference_mode(False)
    def __init__(self, model: PreTrainedModel, context: int) -> None:
        base: Any = model.base_model
        weight = base.norm.weight
        self._shape = Shape.of(model.config, weight.dtype)
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
            self._shape.key_heads,
        )


def _addresses(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
