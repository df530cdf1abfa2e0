"""Loading a policy: a Hugging Face causal model with our attention in it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from sleuth.errors import InputError
from sleuth.model import alike, attention, head, lora, probe
from sleuth.model.exactness import disable_split_k
from sleuth.model.lora import LoRA

CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
SCALES = ("logits_scaling", "logit_scale")
# Rotations that are chosen by the longest sequence of the call: cached keys of a short batch would not fit a long one.
# Phi-3 once wrote "su" for longrope.
ROTATIONS = ("dynamic", "longrope", "su")


def load(folder: Path, device: torch.device, dtype: torch.dtype, adapter: LoRA | None = None) -> PreTrainedModel:
    """The causal model of a folder, ready for packed training and for the embedded engine.

    An adapter is put in here, before anyone reads the storage of the weights.
    """
    if reason := unsupported_reason(_settings(folder)):
        raise _refusal(folder, reason)
    disable_split_k()
    model = _read(folder, dtype)
    head.projection(model)
    if adapter is not None:
        lora.attach(model, adapter)
    nn.Module.to(model, device)
    alike.install(model)
    # Not every CPU can multiply halves, and nobody computes with them there.
    if (device.type == "cuda" or dtype is torch.float32) and (reason := probe.strange(model)):
        raise _refusal(folder, reason)
    return model


def unsupported_reason(settings: Mapping[str, object]) -> str | None:
    """Why our attention and head would not compute what this model means, or None where they do."""
    if settings.get("sliding_window") and settings.get("use_sliding_window", True):
        return f"it slides a window of {settings['sliding_window']} tokens"
    kinds = settings.get("layer_types")
    if isinstance(kinds, list) and (others := sorted(set(kinds) - {"full_attention"})):
        return f"it has layers of {', '.join(others)}"
    for key in CAPS:
        if settings.get(key):
            return f"it caps its logits ({key})"
    for key in SCALES:
        if settings.get(key) not in (None, 1):
            return f"it scales its logits ({key})"
    if moving := sorted(_rotations(settings) & set(ROTATIONS)):
        return f"its rotary positions ({moving[0]}) depend on the longest sequence beside them"
    return None


def _refusal(folder: Path, reason: str) -> InputError:
    return InputError(f"{folder} cannot be served exactly: {reason}; choose a model with plain causal attention")


def _rotations(settings: Mapping[str, object]) -> set[str]:
    """The kinds of rotary positions: of the whole model, or of each kind of layer."""
    named: set[str] = set()
    for key in ("rope_parameters", "rope_scaling"):
        table = settings.get(key)
        if isinstance(table, Mapping):
            inner = [each for each in table.values() if isinstance(each, Mapping)]
            named |= {str(each.get("rope_type", each.get("type"))) for each in (table, *inner)}
    return named


def _settings(folder: Path) -> Mapping[str, object]:
    path = folder / "config.json"
    if not path.exists():
        raise InputError(f"{folder} is no model folder: it has no config.json; give a Hugging Face model folder")
    try:
        settings = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON ({error}); save the model again") from error
    if not isinstance(settings, dict):
        raise InputError(f"{path} holds no JSON object; save the model again")
    return settings


def _read(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model as saved; weights that are absent would be drawn at random, so they are refused."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attention.NAME,
            output_loading_info=True,
            trust_remote_code=False,  # not said, it would be asked for on stdin
        )
    except (KeyError, OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise InputError(f"no causal model can be loaded from {folder} ({error}); save the model again") from error
    model: PreTrainedModel
    model, report = loaded
    if absent := sorted(report["missing_keys"]):
        raise InputError(f"{folder} lacks {len(absent)} weights, {absent[0]} among them; save the model again")
    return model
