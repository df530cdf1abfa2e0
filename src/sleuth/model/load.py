"""Loading a policy: a Hugging Face causal model with our attention in it."""

import json
from pathlib import Path
from typing import cast

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from sleuth.errors import InputError
from sleuth.model import attention


def load(folder: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The causal model of a folder, ready for packed training and for the embedded engine."""
    if not (folder / "config.json").exists():
        raise InputError(f"{folder} is no model folder: it has no config.json; give a Hugging Face model folder")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if reason := unservable(settings):
        raise InputError(f"{folder} cannot be served exactly: {reason}; choose a model with plain causal attention")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention.NAME)
    return cast(PreTrainedModel, model.to(device))


def unservable(settings: dict[str, object]) -> str | None:
    """Why our attention would not compute what this model means, or None where it does."""
    if settings.get("sliding_window") and settings.get("use_sliding_window", True):
        return f"it slides a window of {settings['sliding_window']} tokens"
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if settings.get(key):
            return f"it caps its logits ({key})"
    return None
