"""Models with random weights in the shapes of published models; speed does not depend on the weights."""

from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from sleuth.config import recipe
from sleuth.errors import InputError
from sleuth.model import kernel_patch, lm_head, lora
from sleuth.model.attention import NAME
from sleuth.model.kernel_patch import disable_split_k
from sleuth.model.lora import LoRA
from sleuth.model.policy import Policy, Reference, WithoutAdapter
from sleuth.model.recompute import recompute_layers
from sleuth.model.shapes import published_shape, shape_of_folder
from sleuth.model.tokens import Tokens


def choose_shape(name: str | None, folder: Path | None, default: str) -> tuple[str, PretrainedConfig]:
    if name is not None and folder is not None:
        raise InputError(f"--shape {name} and --model {folder} exclude each other; give one of them")
    if folder is not None:
        return folder.resolve().name, shape_of_folder(folder)
    return name or default, published_shape(name or default)


def random_model(shape: PretrainedConfig, device: torch.device, attention: str = NAME) -> PreTrainedModel:
    """A model with random weights, created on its device, that never ends a text by itself."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=dtype, attn_implementation=attention)
    if model.generation_config is not None:
        model.generation_config.eos_token_id = None
    model.eval()
    return model


def random_policy(
    shape: PretrainedConfig, tokens: Tokens, device: torch.device, *, rank: int = 0, recompute: float = 0.0
) -> Policy:
    """Create a trainable policy; `rank` > 0 adds a LoRA adapter, `recompute` is the fraction of recomputed layers."""
    disable_split_k()
    model = random_model(shape, device)
    lm_head.output_projection(model)
    adapter = LoRA(rank, alpha=2.0 * rank) if rank else None
    if adapter is not None:
        lora.attach(model, adapter)
        nn.Module.to(model, device)
    kernel_patch.install(model)
    recompute_layers(model, recompute)
    return Policy(model, tokens, adapter)


def frozen_reference(shape: PretrainedConfig, policy: Policy) -> Reference:
    """Reference with the policy's current weights: the policy without its adapter, or a frozen copy."""
    if policy.adapter is not None:
        return WithoutAdapter(policy)
    model = random_model(shape, policy.device)
    model.load_state_dict(policy.model.state_dict())
    model.requires_grad_(False)
    kernel_patch.install(model)
    return Policy(model, policy.tokens)


def load_tokens(shape: PretrainedConfig, folder: Path | None) -> Tokens:
    """Load the tokenizer of a model folder, or else the quickstart's, whose ids every larger vocabulary contains."""
    own = folder is not None and (folder / "tokenizer.json").is_file()
    found = Tokens.load(folder) if folder is not None and own else quickstart_tokens()
    if (size := len(found.tokenizer)) > shape.vocab_size:
        raise InputError(f"the shape has {shape.vocab_size} tokens, the tokenizer {size}; choose a larger vocabulary")
    return found


def quickstart_tokens() -> Tokens:
    return Tokens.load(recipe.resolve_policy("quickstart"))
