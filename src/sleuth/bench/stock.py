"""The stock Hugging Face way to train: its own modules and attention, a padded batch, logits of every token at once.

Rows are all of one length here, so that its padding costs nothing.

Suffixes: R rows, L tokens of a row.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

ATTENTION = "sdpa"  # without padding PyTorch computes it by FlashAttention


def passes(shape: PretrainedConfig, ids_RL: Tensor, *, checkpointing: bool) -> Callable[[], object]:
    """A forward and a backward pass on the rows, by a new model of random weights."""
    model = _drawn(shape, ids_RL.device)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def once() -> None:
        model(input_ids=ids_RL, labels=ids_RL, use_cache=False).loss.backward()
        model.zero_grad(set_to_none=True)

    return once


def _drawn(shape: PretrainedConfig, device: torch.device) -> PreTrainedModel:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=dtype, attn_implementation=ATTENTION)
    return model
