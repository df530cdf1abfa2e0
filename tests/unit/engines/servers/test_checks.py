"""Servers whose tied output head ignores updates are detected."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.engines.servers.checks import HEAD_PROMPT, TOP, head_followed

NAME = "model.embed_tokens.weight"


@torch.no_grad()
def likeliest(model: PreTrainedModel, weights: Mapping[str, Tensor], prompt: int) -> dict[int, float]:
    """What a server with these weights says."""
    logits = torch.func.functional_call(model, dict(weights), (torch.tensor([[prompt]]),), tie_weights=False).logits
    found = torch.log_softmax(logits[0, -1], -1).topk(TOP)
    return dict(zip(found.indices.tolist(), found.values.tolist(), strict=True))


@pytest.mark.parametrize("keeps_its_head", [False, True])
def test_a_server_that_keeps_its_old_head_is_detected(
    tiny: Callable[..., PreTrainedModel], keeps_its_head: bool
) -> None:
    model = tiny("llama", attention="eager")
    weights = dict(model.named_parameters())
    assert model.get_output_embeddings().weight is weights[NAME]
    moved = {**weights, NAME: weights[NAME].detach().roll(1, 0)}
    head = weights[NAME] if keeps_its_head else moved[NAME]
    before = likeliest(model, {**weights, "lm_head.weight": weights[NAME]}, HEAD_PROMPT)
    after = likeliest(model, {**moved, "lm_head.weight": head}, HEAD_PROMPT + 1)
    assert head_followed(before, after, len(weights[NAME])) is not keeps_its_head
