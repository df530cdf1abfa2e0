"""Loads a policy: a Hugging Face causal model with our attention, after checks that it can be computed exactly.

A token may depend on other tokens only through our attention, and on its place only through its position. Otherwise
packed rows would mix, and a token computed in a batch would differ from the same token computed alone.

Suffixes: N packed tokens, H heads, D head width, W model width, V vocabulary.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from sleuth.errors import InputError
from sleuth.model import attention, kernel_patch, lm_head, lora
from sleuth.model.attention import AttentionShape
from sleuth.model.lora import LoRA

LOGIT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
LOGIT_SCALES = ("logits_scaling", "logit_scale")
ROPE_KEYS = ("rope_parameters", "rope_scaling")
# Rotary types whose angles depend on the longest sequence of the call: keys cached in a short batch would be wrong in
# a long one. Older Phi-3 configs call longrope "su".
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope", "su")

NEIGHBOURS = (0, 1)
TOKEN = 2
# Relative to the largest value: another summation order stays far below this.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 5e-2}


def load(folder: Path, device: torch.device, dtype: torch.dtype, adapter: LoRA | None = None) -> PreTrainedModel:
    """Load the causal model of a folder for packed training and the embedded engine.

    An adapter is attached here, before anything reads the storage of the weights.
    """
    reason = unsupported_reason(_read_config(folder))
    if reason is None:
        kernel_patch.disable_split_k()
        model = _read_model(folder, dtype)
        lm_head.output_projection(model)
        if adapter is not None:
            lora.attach(model, adapter)
        nn.Module.to(model, device)
        kernel_patch.install(model)
        # Skipped for half precision on a CPU: not every CPU multiplies such matrices, and no forward pass runs there.
        if device.type == "cuda" or dtype is torch.float32:
            reason = inexact_reason(model)
    if reason is not None:
        raise InputError(f"{folder} cannot be served exactly: {reason}; choose a model with plain causal attention")
    return model


def unsupported_reason(config: Mapping[str, object]) -> str | None:
    """Return why our attention and output head cannot compute a model with this config, or None."""
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        return f"it has a sliding window of {config['sliding_window']} tokens"
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and (others := sorted(set(kinds) - {"full_attention"})):
        return f"it has {', '.join(others)} layers"
    if caps := [key for key in LOGIT_CAPS if config.get(key)]:
        return f"it caps its logits ({caps[0]})"
    if scales := [key for key in LOGIT_SCALES if config.get(key) not in (None, 1)]:
        return f"it scales its logits ({scales[0]})"
    # Of the model, or of each kind of layer.
    tables = [table for key in ROPE_KEYS if isinstance(table := config.get(key), Mapping)]
    tables += [inner for table in tables for inner in table.values() if isinstance(inner, Mapping)]
    types = {str(table.get("rope_type", table.get("type"))) for table in tables}
    if dependent := sorted(types & set(LENGTH_DEPENDENT_ROPE)):
        return f"its rotary embedding ({dependent[0]}) depends on the longest sequence in the batch"
    return None


def _read_config(folder: Path) -> Mapping[str, object]:
    path = folder / "config.json"
    if not path.exists():
        raise InputError(f"{folder} has no config.json; expected a Hugging Face model folder")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); save the model again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} is not a JSON object; save the model again")
    return config


def _read_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attention.NAME,
            output_loading_info=True,
            trust_remote_code=False,  # without it, transformers asks on stdin
        )
    except (KeyError, OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise InputError(f"no causal model can be loaded from {folder} ({error}); save the model again") from error
    model: PreTrainedModel
    model, report = loaded
    # transformers would initialise them at random.
    if missing := sorted(report["missing_keys"]):
        raise InputError(f"{folder} lacks {len(missing)} weights, including {missing[0]}; save the model again")
    return model


@dataclass(slots=True)
class _NoAttention:
    """A layout in which no token sees any other; records the last token's key per layer."""

    keys: dict[int, Tensor] = field(default_factory=dict)

    def attend(self, layer: int, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float) -> Tensor:  # noqa: ARG002
        if layer in self.keys or key_NHD.shape != value_NHD.shape:
            raise ValueError(f"layer {layer} attends twice, or its keys and values have different shapes")
        self.keys[layer] = key_NHD[-1]
        return query_NHD.new_zeros(*query_NHD.shape[:2], value_NHD.shape[2])


@torch.no_grad()
def inexact_reason(model: PreTrainedModel) -> str | None:
    """Run small forward passes and return why the model cannot be computed token by token, or None."""
    layers: int = model.config.num_hidden_layers
    try:
        (alone_W, logits_V, keys), (batched_W, _, keys_batched) = _forward(model, ()), _forward(model, NEIGHBOURS)
    except Exception as error:  # an unsupported model may raise anything
        return f"its forward pass does not accept our attention ({type(error).__name__}: {error})"
    if len(keys) != layers:
        return f"{len(keys)} of its {layers} layers use the attention interface"
    shape = AttentionShape.of(model.config, alone_W.dtype)
    expected = (shape.kv_heads, shape.head_dim)
    if others := {tuple(key.shape) for key in keys.values()} - {expected}:
        return f"its keys have shape {others.pop()} (heads, width), but its config says {expected}"
    if not all(_is_close(keys[layer], keys_batched[layer]) for layer in keys) or not _is_close(alone_W, batched_W):
        return "its tokens depend on neighbours or place other than through attention and position"
    projection = lm_head.output_projection(model)
    if not _is_close(lm_head.logits(alone_W[None], projection.weight, projection.bias)[0], logits_V):
        return "its logits are not those of one linear layer"
    return None


def _forward(model: PreTrainedModel, before: tuple[int, ...]) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """Last hidden state, logits and keys of TOKEN at a fixed position, with or without other tokens."""
    layout, place = _NoAttention(), len(NEIGHBOURS)
    ids = torch.tensor([[*before, TOKEN]], device=model.device)
    positions = torch.arange(place - len(before), place + 1, device=model.device)[None]
    call = {"input_ids": ids, "position_ids": positions, "use_cache": False, "layout": layout}
    hidden_NW = model.base_model(**call).last_hidden_state[0]
    logits_NV = model(**{**call, "layout": _NoAttention()}).logits[0]
    return hidden_NW[-1], logits_NV[-1], layout.keys


def _is_close(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors are equal up to rounding; NaN counts as equal, because it is inconclusive."""
    bound = max(TOLERANCE[left.dtype], TOLERANCE[right.dtype]) * float(left.abs().max())
    return not float((left.float() - right.float()).abs().max()) > bound
