"""Policies of random weights, made as those of a folder are: with our attention, kernels of the trainer, an adapter."""

from pathlib import Path

import torch
from torch import nn
from transformers import PretrainedConfig

from sleuth.bench.engine import drawn
from sleuth.config import recipe
from sleuth.errors import InputError
from sleuth.model import kernel_patch, lm_head, lora
from sleuth.model.kernel_patch import disable_split_k
from sleuth.model.lora import LoRA
from sleuth.model.policy import Policy, Reference, WithoutAdapter
from sleuth.model.recompute import recompute_layers
from sleuth.model.tokens import Tokens


def policy(
    shape: PretrainedConfig, tokens: Tokens, device: torch.device, *, rank: int = 0, recompute: float = 0.0
) -> Policy:
    """A policy to train: the whole of it, or with a rank an adapter; a share of its layers computes itself again."""
    disable_split_k()
    model = drawn(shape, device)
    lm_head.output_projection(model)
    adapter = LoRA(rank, alpha=2.0 * rank) if rank else None
    if adapter is not None:
        lora.attach(model, adapter)
        nn.Module.to(model, device)
    kernel_patch.install(model)
    recompute_layers(model, recompute)
    return Policy(model, tokens, adapter)


def reference(shape: PretrainedConfig, learning: Policy) -> Reference:
    """The policy as it is now, for good: itself without its adapter, or a frozen copy."""
    if learning.adapter is not None:
        return WithoutAdapter(learning)
    model = drawn(shape, learning.device)
    model.load_state_dict(learning.model.state_dict())
    model.requires_grad_(False)
    kernel_patch.install(model)
    return Policy(model, learning.tokens)


def tokens(shape: PretrainedConfig, folder: Path | None) -> Tokens:
    """The tokenizer of a model folder, or the shipped one, whose ids every larger vocabulary has too."""
    found = Tokens.load(folder) if folder is not None and (folder / "tokenizer.json").is_file() else shipped()
    if (most := len(found.tokenizer)) > shape.vocab_size:
        raise InputError(
            f"the shape has {shape.vocab_size} tokens and the tokenizer {most}; choose a shape with as many or more"
        )
    return found


def shipped() -> Tokens:
    """The tokenizer of the quickstart."""
    return Tokens.load(recipe.resolve_policy("quickstart"))
