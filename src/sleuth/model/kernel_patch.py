"""The training forward with the engine's kernels, on a GPU in half precision.

In half precision a difference of one bit soon spreads to every value through later rounding. The trainer's logprobs
equal the engine's only if both run every operation on the same bits with the same rounding. Layers of the Llama family
are replaced as a whole; in other models only norms and activations are.

Suffixes: N packed tokens, W model width, D head width.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from sleuth.model import llama_family
from sleuth.model.attention import PackedFlash, PackedLayout, supports_head_dim


def disable_split_k() -> None:
    """Disable split-K in half-precision matrix products, which would make sums depend on the number of rows.

    A row of a product then has the same bits in a decode step of a few lanes as in a training pass of thousands.
    """
    # (no reduced precision, no split-K); only cuBLASLt honours the second.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)
    if torch.cuda.is_available():
        torch.backends.cuda.preferred_blas_library("cublaslt")


def install(model: PreTrainedModel) -> None:
    """Patch layers, RMSNorm and SiLU modules to use the kernels where these apply.

    On a GPU in half precision, weights with the same input become adjacent in memory; call again if parameters move.
    """
    for module in model.modules():
        is_norm = type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")
        if is_norm or isinstance(module, SiLUActivation | nn.SiLU):
            module.forward = MethodType(_norm_or_silu, module)
    if llama_family.difference(model) is None:
        base: Any = model.base_model
        for layer in base.layers:
            layer.forward = MethodType(_layer, layer)
            if _uses_kernels(base.norm.weight):
                from sleuth.model.fused_layers import fuse_linears

                fuse_linears((layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj))
                fuse_linears((layer.mlp.gate_proj, layer.mlp.up_proj))


def _uses_kernels(states: Tensor) -> bool:
    return states.is_cuda and states.dtype.itemsize == 2


def _norm_or_silu(module: Any, states: Tensor) -> Tensor:
    if _uses_kernels(states):
        from sleuth.model import fused_layers

        is_norm = hasattr(module, "variance_epsilon")
        return fused_layers.rms_norm(module, states) if is_norm else fused_layers.silu(states)
    unpatched: Tensor = type(module).forward(module, states)
    return unpatched


def _layer(layer: Any, hidden_states: Tensor, *others: Any, **call: Any) -> Tensor:
    if (
        not others
        and _uses_kernels(hidden_states)
        and isinstance(call.get("layout"), PackedLayout)
        and len(hidden_states) == 1
        and call.get("attention_mask") is None
        and call.get("past_key_values") is None
        and supports_head_dim(layer.self_attn.head_dim)
        and layer.input_layernorm.weight.dtype == hidden_states.dtype
    ):
        cos_ND, sin_ND = (table[0].contiguous() for table in call["position_embeddings"])
        return decoder_layer(layer, hidden_states, cos_ND, sin_ND, call["layout"].flash)
    unpatched: Tensor = type(layer).forward(layer, hidden_states, *others, **call)
    return unpatched


def decoder_layer(layer: Any, states_1NW: Tensor, cos_ND: Tensor, sin_ND: Tensor, packed: PackedFlash) -> Tensor:
    """Compute a decoder layer on packed states, bit-identical to the engine."""
    from sleuth.model import fused_layers
    from sleuth.model.kernels.rotary import HeadLayout

    attn, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = (getattr(attn, name, None) for name in ("q_norm", "k_norm"))
    norms = (None, None) if query_norm is None or key_norm is None else (query_norm.weight, key_norm.weight)
    eps = 0.0 if query_norm is None else query_norm.variance_epsilon
    heads = HeadLayout(attn.config.num_attention_heads, attn.config.num_key_value_heads, attn.head_dim, eps)

    projections = (attn.q_proj, attn.k_proj, attn.v_proj)
    residual_NW, qkv_NX = fused_layers.add_norm_project(states_1NW[0], None, layer.input_layernorm, projections)
    attended_NX = packed.attend_rotated(qkv_NX, cos_ND, sin_ND, norms, heads, attn.scaling)
    delta_NW = fused_layers.project(attended_NX, attn.o_proj)
    residual_NW, both_N2I = fused_layers.add_norm_project(
        residual_NW, delta_NW, layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)
    )
    # A new tensor, not a view: FSDP registers a hook on it.
    return residual_NW[None] + fused_layers.gate_project(both_N2I, mlp.down_proj)[None]
