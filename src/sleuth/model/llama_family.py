"""Recognises models of the Llama family, whose layers engine and trainer compute with their own kernels."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from sleuth.model.attention import AttentionShape

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# Rotary embeddings whose angles depend on the position alone, not on the sequence length.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
MODEL = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def difference(model: PreTrainedModel) -> str | None:
    """Return how the model differs from the Llama family, or None if it belongs to the family."""
    return next(_differences(model), None)


def _differences(model: PreTrainedModel) -> Iterator[str]:
    """Yield differences; only the first is meaningful, because later checks assume that earlier ones passed."""
    kind: str = model.config.model_type
    base: Any = model.base_model
    if kind not in MODEL_TYPES:
        yield f"the model type is {kind}, expected one of {', '.join(MODEL_TYPES)}"
    yield from _part_differences("the model", base, MODEL)
    rotary = base.rotary_emb
    if rotary.rope_type not in ROPE_TYPES:
        yield f"the rotary embedding has type {rotary.rope_type}, expected one of {', '.join(ROPE_TYPES)}"
    head_dim = AttentionShape.of(model.config, base.norm.weight.dtype).head_dim
    if 2 * rotary.inv_freq.numel() != head_dim:
        yield f"the rotary embedding rotates {2 * rotary.inv_freq.numel()} of {head_dim} head dimensions, expected all"
    for number, layer in enumerate(base.layers):
        yield from _part_differences(f"layer {number}", layer, LAYER)
        attn, mlp = layer.self_attn, layer.mlp
        norms = HEAD_NORMS if HEAD_NORMS & dict(attn.named_children()).keys() else set()
        yield from _part_differences(f"the attention of layer {number}", attn, ATTENTION | norms)
        yield from _part_differences(f"the MLP of layer {number}", mlp, MLP)
        window = getattr(attn, "sliding_window", getattr(model.config, "sliding_window", None))
        if window is not None:
            yield f"layer {number} has a sliding window of {window} tokens, expected none"
        if not isinstance(mlp.act_fn, SiLUActivation | nn.SiLU):
            yield f"the MLP of layer {number} has activation {type(mlp.act_fn).__name__}, expected SiLU"
    dtype = base.norm.weight.dtype
    for norm in (module for name, module in base.named_modules() if name.split(".")[-1].endswith("norm")):
        if not (type(norm).__name__.endswith("RMSNorm") and hasattr(norm, "variance_epsilon")):
            yield f"a norm is a {type(norm).__name__}, expected an RMSNorm with variance_epsilon"
        elif isinstance(norm.weight, Tensor) and norm.weight.dtype != dtype:
            yield f"norms have dtypes {norm.weight.dtype} and {dtype}, expected one dtype"


def _part_differences(owner: str, module: nn.Module, expected: set[str]) -> Iterator[str]:
    parts = dict(module.named_children())
    if missing := expected - parts.keys():
        yield f"{owner} has no {min(missing)}"
    for name in parts.keys() - expected:
        if any(True for _ in parts[name].parameters()):
            yield f"{owner} has an unexpected part {name}"
