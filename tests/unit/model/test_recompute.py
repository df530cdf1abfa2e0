"""Recomputed layers keep only their input and give the same gradients."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sleuth.model.attention import NAME, PackedLayout
from sleuth.model.kernel_patch import install
from sleuth.model.recompute import recompute_layers

LENGTHS = [4, 6]
LAYERS = 4


@pytest.fixture
def model() -> PreTrainedModel:
    config = AutoConfig.for_model(
        "qwen2", vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    made: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    install(made)
    made.eval()
    return made


def hidden(model: PreTrainedModel) -> Tensor:
    layout = PackedLayout(LENGTHS, torch.device("cpu"))
    ids = torch.arange(sum(LENGTHS))[None]
    out: Tensor = model.base_model(
        input_ids=ids, position_ids=layout.positions_N[None], use_cache=False, layout=layout
    ).last_hidden_state
    return out


def gradients(model: PreTrainedModel) -> list[Tensor]:
    return list(torch.autograd.grad(hidden(model).square().sum(), list(model.base_model.parameters())))


def calls(model: PreTrainedModel, step: Callable[[PreTrainedModel], object]) -> list[int]:
    """How often each layer computes its MLP in a step."""
    base: Any = model.base_model
    counts = [0] * LAYERS

    def counting(number: int) -> Callable[..., None]:
        def count(*_: object) -> None:
            counts[number] += 1

        return count

    hooks = [layer.mlp.register_forward_pre_hook(counting(number)) for number, layer in enumerate(base.layers)]
    step(model)
    for hook in hooks:
        hook.remove()
    return counts


@pytest.mark.parametrize(
    ("share", "expected"), [(0, [1, 1, 1, 1]), (0.25, [1, 1, 1, 2]), (0.5, [1, 2, 1, 2]), (1, [2, 2, 2, 2])]
)
def test_share_of_layers_computes_itself_again(model: PreTrainedModel, share: float, expected: list[int]) -> None:
    before = gradients(model)
    recompute_layers(model, share)
    assert calls(model, gradients) == expected
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(gradients(model), before, strict=True))


def test_share_can_be_changed(model: PreTrainedModel) -> None:
    for share, expected in ((1.0, [2] * LAYERS), (0.5, [1, 2, 1, 2]), (0.0, [1] * LAYERS)):
        recompute_layers(model, share)
        assert calls(model, gradients) == expected


@torch.no_grad()
def test_without_gradients_nothing_is_computed_again(model: PreTrainedModel) -> None:
    before = hidden(model)
    recompute_layers(model, 1.0)
    assert calls(model, hidden) == [1] * LAYERS
    assert torch.equal(hidden(model), before)


def test_copy_computes_with_its_own_weights(model: PreTrainedModel) -> None:
    recompute_layers(model, 1.0)
    before, copied = hidden(model), copy.deepcopy(model)
    with torch.no_grad():
        copied.model.layers[0].mlp.down_proj.weight.mul_(3)
    assert torch.equal(hidden(model), before)
    assert not torch.allclose(hidden(copied), before)


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_share_beyond_all_is_refused(model: PreTrainedModel, share: float) -> None:
    with pytest.raises(ValueError, match=f"is {share}, expected 0 to 1"):
        recompute_layers(model, share)
