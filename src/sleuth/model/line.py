"""Whether a model is of the Llama line, whose layers engine and trainer compute by kernels of their own."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

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
    """Why the model is none of the line, or None where it is."""
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
