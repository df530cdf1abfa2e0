"""A fused decoder layer matches Hugging Face forward and backward, wherever its weights are stored."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from sleuth.model.attention import PackedFlash, PackedLayout
from sleuth.model.fused_layers import fuse_linears, plain_linears, project
from sleuth.model.kernel_patch import decoder_layer

Tiny = Callable[..., PreTrainedModel]
LENGTHS = [4, 1, 3]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Found = tuple[Tensor, dict[str, Tensor]]


@pytest.fixture
def make(tiny: Tiny) -> Tiny:
    def made(family: str) -> PreTrainedModel:
        model = tiny(family)
        nn.Module.to(model, DEVICE)
        return model

    return made


def drawn(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def layer_of(model: PreTrainedModel, number: int = 0) -> Any:
    base: Any = model.base_model
    return base.layers[number]


def given(model: PreTrainedModel) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Positions, states and the tables of the rotation."""
    base: Any = model.base_model
    positions_1N = PackedLayout(LENGTHS, DEVICE).positions_N[None]
    states_1NW = drawn(1, sum(LENGTHS), model.config.hidden_size)
    return positions_1N, states_1NW, base.rotary_emb(states_1NW, positions_1N)


def derived(layer: Any, states: Tensor, out: Tensor) -> Found:
    """The output, and the gradient of everything for a sum that weighs each number differently."""
    leaves = {name: leaf for name, leaf in layer.named_parameters() if leaf.requires_grad} | {"states": states}
    found = torch.autograd.grad((out * drawn(*out.shape, seed=1)).sum(), list(leaves.values()))
    return out.detach(), dict(zip(leaves, found, strict=True))


def stock(model: PreTrainedModel, layer: Any) -> Found:
    positions, states, tables = given(model)
    states = states.requires_grad_()
    layout = PackedLayout(LENGTHS, DEVICE)
    out = layer(states, attention_mask=None, position_ids=positions, position_embeddings=tables, layout=layout)
    return derived(layer, states, out)


def ours(model: PreTrainedModel, layer: Any, again: bool = False) -> Found:
    _, states, (cos, sin) = given(model)
    states.requires_grad_()
    call = (layer, states, cos[0], sin[0], PackedFlash(LENGTHS, DEVICE))
    out = (
        checkpoint(decoder_layer, *call, use_reentrant=False, preserve_rng_state=False)
        if again
        else decoder_layer(*call)
    )
    assert isinstance(out, Tensor)
    return derived(layer, states, out)


def lay_joined(layer: Any) -> None:
    fuse_linears((layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj))
    fuse_linears((layer.mlp.gate_proj, layer.mlp.up_proj))


def assert_near(found: Found, expected: Found) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, theirs in expected[1].items():
        torch.testing.assert_close(found[1][name], theirs, rtol=1e-4, atol=2e-5 * float(theirs.abs().max()), msg=name)


def test_layer_and_its_gradients(make: Tiny, family: str) -> None:
    """Its weights as they were made, and as a sharded model gathers them: apart."""
    model = make(family)
    layer = layer_of(model, 1)
    assert_near(ours(model, layer), stock(model, layer))


def test_layer_whose_weights_lie_together(make: Tiny) -> None:
    model = make("qwen2")
    layer = layer_of(model)
    apart = ours(model, layer)
    lay_joined(layer)
    together = ours(model, layer)
    assert torch.equal(together[0], apart[0])
    assert all(torch.equal(together[1][name], apart[1][name]) for name in apart[1])


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_layer_computed_again_has_the_same_gradients(make: Tiny, family: str) -> None:
    """Rotated in place, the heads of the first time are none of the second's."""
    model = make(family)
    layer = layer_of(model)
    kept, again = ours(model, layer), ours(model, layer, again=True)
    assert torch.equal(kept[0], again[0])
    assert all(torch.equal(kept[1][name], again[1][name]) for name in kept[1])


TARGETS = (["q_proj", "v_proj"], ["gate_proj"], ["o_proj", "down_proj"])


@pytest.mark.parametrize("targets", TARGETS, ids=str)
def test_adapters_are_called(make: Tiny, targets: Sequence[str]) -> None:
    """Only they are trained; what they wrap, and the norms, are frozen."""
    model = make("qwen2")
    get_peft_model(model, LoraConfig(r=2, target_modules=list(targets), init_lora_weights=False))
    layer = layer_of(model)
    expected = stock(model, layer)
    assert len(expected[1]) == 1 + 2 * len(targets)
    assert_near(ours(model, layer), expected)


@pytest.mark.parametrize("bias", [False, True])
def test_product_and_its_gradients(bias: bool) -> None:
    module, states, upstream = nn.Linear(6, 4, bias=bias).to(DEVICE), drawn(9, 6).requires_grad_(), drawn(9, 4, seed=1)
    leaves = [states, *module.parameters()]
    found, expected = project(states, module), module(states)
    assert torch.equal(found, expected)
    pairs = zip(*(torch.autograd.grad(out, leaves, upstream) for out in (found, expected)), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_what_is_kept_of_a_layer(make: Tiny) -> None:
    """The stream before and after attention, the heads, what was attended, its logs, and gate and up: nothing else."""
    model = make("llama")
    config, layer = model.config, layer_of(model)
    lay_joined(layer)
    _, states, (cos, sin) = given(model)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    states.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = decoder_layer(layer, states, cos[0], sin[0], PackedFlash(LENGTHS, DEVICE))
    assert out.requires_grad
    numbers = 2 * 32 + 3 * 32 + 32 + 4 + 2 * config.intermediate_size
    tables = cos.nbytes + sin.nbytes
    assert sum(kept.values()) == 4 * sum(LENGTHS) * numbers + tables


def test_weights_that_lie_together_are_not_copied(make: Tiny) -> None:
    layer = layer_of(make("qwen2"))
    modules = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
    before = copy.deepcopy([module.weight for module in modules])
    lay_joined(layer)
    assert len({module.weight.untyped_storage().data_ptr() for module in modules}) == 1
    assert all(torch.equal(module.weight, weight) for module, weight in zip(modules, before, strict=True))
    assert plain_linears((*modules, layer.mlp)) is None
    assert plain_linears((*modules, layer.mlp.gate_proj)) is None, "some with a bias, some without"
