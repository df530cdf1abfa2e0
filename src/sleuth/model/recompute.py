"""Layers that keep their input alone and compute themselves again in the backward pass: less memory for more time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


@dataclass(frozen=True, slots=True)
class _Again:
    """A layer's forward call, made twice where gradients are wanted."""

    once: Callable[..., Any]

    def __call__(self, *states: Any, **call: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.once(*states, **call)
        # No layer that is trained here draws random numbers.
        return checkpoint(self.once, *states, use_reentrant=False, preserve_rng_state=False, **call)


def recomputed(model: PreTrainedModel, share: float) -> None:
    """Lets that share of the decoder layers, evenly spread, compute themselves again; the others keep their states."""
    if not 0 <= share <= 1:
        raise ValueError(f"the share of layers to recompute is {share}, expected 0 to 1")
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for number, layer in enumerate(layers):
        own = layer.forward.once if isinstance(layer.forward, _Again) else layer.forward
        chosen = round((number + 1) * share, 9) // 1 > round(number * share, 9) // 1
        if chosen or own is not layer.forward:
            layer.forward = _Again(own) if chosen else own
