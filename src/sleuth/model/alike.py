"""The training forward by the engine's kernels, where it runs on a GPU in half precision.

In half precision two computations that differ in one bit soon differ in all: every rounding after it widens the gap.
So the trainer's logprobs equal the engine's only where both begin each operation from the same bits and end with the
same. Layers of the Llama line compute as a whole; elsewhere norms and activations do, one by one.

Suffixes: N packed tokens, W model width, D head width.
"""

from collections.abc import Mapping
from types import MethodType
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from sleuth.model import flash, fused, line
from sleuth.model.attention import Packed
from sleuth.model.projection import joined


def install(model: PreTrainedModel) -> None:
    """Lets layers, RMSNorm and silu modules compute by the kernels, and elsewhere as they did.

    On a GPU in half precision the weights of a layer that read the same input are laid one after another: called again
    where parameters have moved since, it does so again.
    """
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = MethodType(_norm, module)
        elif isinstance(module, SiLUActivation | nn.SiLU):
            module.forward = MethodType(_silu, module)  # type: ignore[method-assign]
    if line.recognised(model) is None:
        base: Any = model.base_model
        for layer in base.layers:
            layer.forward = MethodType(_layer, layer)
            if _by_kernel(base.norm.weight):
                joined((layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj))
                joined((layer.mlp.gate_proj, layer.mlp.up_proj))


def _norm(module: Any, states: Tensor) -> Tensor:
    if _by_kernel(states):
        return fused.norm(module, states)
    plain: Tensor = type(module).forward(module, states)
    return plain


def _silu(module: Any, states: Tensor) -> Tensor:
    if _by_kernel(states):
        return fused.silu(states)
    plain: Tensor = type(module).forward(module, states)
    return plain


def _layer(layer: Any, hidden_states: Tensor, *others: Any, **call: Any) -> Tensor:
    if not others and _by_kernel(hidden_states) and _packed(layer, hidden_states, call):
        cos_ND, sin_ND = (table[0].contiguous() for table in call["position_embeddings"])
        return decoded(layer, hidden_states, cos_ND, sin_ND, call["layout"].flash)
    plain: Tensor = type(layer).forward(layer, hidden_states, *others, **call)
    return plain


def _by_kernel(states: Tensor) -> bool:
    return states.is_cuda and states.dtype.itemsize == 2


def _packed(layer: Any, hidden_states: Tensor, call: Mapping[str, Any]) -> bool:
    """Whether the call asks for rows laid end to end, and for nothing that the kernels do not compute."""
    return (
        isinstance(call.get("layout"), Packed)
        and len(hidden_states) == 1
        and call.get("attention_mask") is None
        and call.get("past_key_values") is None
        and flash.takes_width(layer.self_attn.head_dim)
        and layer.input_layernorm.weight.dtype == hidden_states.dtype
    )


def decoded(layer: Any, states_1NW: Tensor, cos_ND: Tensor, sin_ND: Tensor, packed: flash.Flash) -> Tensor:
    """What a decoder layer makes of packed states, with the engine's bits."""
    from sleuth.model.kernels.rotary import Heads

    attends, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = (getattr(attends, name, None) for name in ("q_norm", "k_norm"))
    norms = (None, None) if query_norm is None or key_norm is None else (query_norm.weight, key_norm.weight)
    eps = 0.0 if query_norm is None else query_norm.variance_epsilon
    config = attends.config
    shape = Heads(config.num_attention_heads, config.num_key_value_heads, attends.head_dim, eps)

    inputs = (attends.q_proj, attends.k_proj, attends.v_proj)
    residual_NW, qkv_NX = fused.normed_product(states_1NW[0], None, layer.input_layernorm, inputs)
    seen_NX = packed.attend_rotated(qkv_NX, cos_ND, sin_ND, norms, shape, attends.scaling)
    delta_NW = fused.product(seen_NX, attends.o_proj)
    residual_NW, both_N2I = fused.normed_product(
        residual_NW, delta_NW, layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)
    )
    # A tensor of its own, no view: whoever shards the layer hangs a hook on it.
    return residual_NW[None] + fused.gated_product(both_N2I, mlp.down_proj)[None]
