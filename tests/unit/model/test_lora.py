"""Adapters: attached at loading, trained alone, disabled and merged exactly."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.errors import InputError
from sleuth.model import lora
from sleuth.model.load import load
from sleuth.model.lora import LoRA

Tiny = Callable[..., PreTrainedModel]
CPU = torch.device("cpu")
LINEAR = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path) -> Path:
    tiny().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def places(model: PreTrainedModel) -> list[str]:
    """The names of the layers that have an adapter."""
    return sorted({name.split(".")[-4] for name, _ in model.named_parameters() if "lora_A" in name})


@torch.no_grad()
def stir(model: PreTrainedModel) -> None:
    """An adapter as training leaves it."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    model.set_attn_implementation("eager")
    found: torch.Tensor = model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits
    return found


@pytest.mark.parametrize(("targets", "expected"), [("all-linear", LINEAR), ("q_proj, v_proj", ["q_proj", "v_proj"])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_adapter_is_trained_and_in_the_type_of_the_model(
    folder: Path, targets: str, expected: list[str], dtype: torch.dtype
) -> None:
    model = load(folder, CPU, dtype, LoRA(4, 8.0, targets))
    assert places(model) == expected
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if "lora_" in name}


def test_fresh_adapter_changes_nothing(folder: Path) -> None:
    assert torch.equal(logits(load(folder, CPU, torch.float32, LoRA(4, 8.0))), logits(load(folder, CPU, torch.float32)))


def test_adapter_is_drawn_by_its_seed_and_nothing_else(folder: Path) -> None:
    def drawn(seed: int, noise: int) -> list[torch.Tensor]:
        torch.manual_seed(noise)
        model = load(folder, CPU, torch.float32, LoRA(4, 8.0, seed=seed))
        assert torch.initial_seed() == noise
        return [parameter for name, parameter in model.named_parameters() if "lora_A" in name]

    first, again, other = drawn(0, 1), drawn(0, 2), drawn(1, 1)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["lm_head", "q_porj", "norm"])
def test_layers_that_cannot_have_one_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}'.*down_proj, .*all-linear"):
        load(folder, CPU, torch.float32, LoRA(4, 8.0, f"q_proj,{name}"))


def test_without_it_the_model_is_the_one_it_was_even_after_an_error(folder: Path) -> None:
    model = load(folder, CPU, torch.float32, LoRA(4, 8.0))
    before = logits(load(folder, CPU, torch.float32))
    stir(model)
    adapted = logits(model)
    with lora.disabled(model):
        assert torch.equal(logits(model), before)
    with pytest.raises(RuntimeError, match="mine"), lora.disabled(model):
        raise RuntimeError("mine")
    assert torch.equal(logits(model), adapted)
    assert not torch.allclose(adapted, before, atol=1e-2)
    assert all(parameter.requires_grad == ("lora_" in name) for name, parameter in model.named_parameters())


def test_merged_weights_are_those_of_a_plain_model(folder: Path) -> None:
    adapter = LoRA(4, 6.0)
    model, plain = load(folder, CPU, torch.float32, adapter), load(folder, CPU, torch.float32)
    stir(model)
    plain.load_state_dict(lora.merge(model.state_dict(), adapter))
    assert torch.allclose(logits(plain), logits(model), rtol=1e-4, atol=1e-3)


def test_merging_halves_rounds_once(folder: Path) -> None:
    adapter = LoRA(2, 2.0, "o_proj")
    weights = load(folder, CPU, torch.bfloat16, adapter)
    stir(weights)
    state = weights.state_dict()
    at = "model.layers.0.self_attn.o_proj"
    single = {name: tensor.float() for name, tensor in state.items()}
    expected = lora.merge(single, adapter)[f"{at}.weight"]
    assert torch.equal(lora.merge(state, adapter)[f"{at}.weight"], expected.bfloat16())
