"""Activation recomputation: layers keep only their input and run again in the backward pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


@dataclass(frozen=True, slots=True)
class _Recomputed:
    forward: Callable[..., Any]

    def __call__(self, *states: Any, **call: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*states, **call)
        # The layers trained here draw no random numbers.
        return checkpoint(self.forward, *states, use_reentrant=False, preserve_rng_state=False, **call)


def recompute_layers(model: PreTrainedModel, share: float) -> None:
    """Recompute an evenly spread share of the decoder layers; the others keep their activations."""
    if not 0 <= share <= 1:
        raise ValueError(f"the share of layers to recompute is {share}, expected 0 to 1")
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for number, layer in enumerate(layers):
        forward = layer.forward.forward if isinstance(layer.forward, _Recomputed) else layer.forward
        chosen = round((number + 1) * share, 9) // 1 > round(number * share, 9) // 1
        if chosen or forward is not layer.forward:
            layer.forward = _Recomputed(forward) if chosen else forward
