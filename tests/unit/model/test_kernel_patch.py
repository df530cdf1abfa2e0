"""Patched norms and activations match their modules and gradients, and apply on a GPU in half precision only."""

import copy
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.backends.cuda import matmul
from transformers import GemmaConfig, GemmaForCausalLM, PreTrainedModel
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.engines.paged.triton_backend import rotate_and_store
from sleuth.model import fused_layers
from sleuth.model.attention import PackedLayout, _AttendRotated
from sleuth.model.fused_layers import _AddNormProject, _GateProject
from sleuth.model.kernel_patch import disable_split_k, install
from sleuth.model.kernels import pointwise
from sleuth.model.load import load

Tiny = Callable[..., PreTrainedModel]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter cuts bf16 off where a GPU rounds it; what rounds fp16 is the same code.
HALVES = (torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu))
DTYPES = (torch.float32, *HALVES)
EPS = 1e-5
# The first is a row, the last a view of heads that lie within other numbers.
SHAPES = {"rows": (5, 24), "batches": (2, 3, 24), "heads": (3, 4, 24)}


def drawn(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def on_gpu(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    nn.Module.to(model, "cuda", dtype)
    return model


@pytest.fixture(params=SHAPES)
def states(request: pytest.FixtureRequest) -> Tensor:
    size = SHAPES[request.param]
    return drawn(*size[:-1], 2 * size[-1])[..., : size[-1]] if request.param == "heads" else drawn(*size)


def normed(states: Tensor, weight: Tensor) -> Tensor:
    return fused_layers.rms_norm(SimpleNamespace(weight=weight, variance_epsilon=EPS), states)


def activated(states: Tensor) -> Tensor:
    return fused_layers.silu(states)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_is_the_module(states: Tensor, dtype: torch.dtype) -> None:
    module = LlamaRMSNorm(24, EPS).to(DEVICE, dtype)
    module.weight.data = drawn(24, dtype=dtype, seed=1)
    found, expected = normed(states.to(dtype), module.weight), module(states.to(dtype))
    assert found.dtype == dtype
    # The squares are summed in another order, and a rounding may fall otherwise.
    torch.testing.assert_close(found, expected, rtol=3 * torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_is_the_module(states: Tensor, dtype: torch.dtype) -> None:
    given = 4 * states.to(dtype)
    torch.testing.assert_close(activated(given), nn.SiLU()(given), rtol=2 * torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_norm(states: Tensor, dtype: torch.dtype) -> None:
    given, weight = states.to(dtype), drawn(24, dtype=dtype, seed=1)
    upstream = drawn(*states.shape, dtype=dtype, seed=2)
    exact = [tensor.double().detach().requires_grad_() for tensor in (given, weight)]
    scale = torch.rsqrt(exact[0].square().mean(-1, keepdim=True) + EPS)
    expected = torch.autograd.grad(exact[0] * scale * exact[1], exact, upstream.double())
    own = [tensor.detach().requires_grad_() for tensor in (given, weight)]
    found = torch.autograd.grad(normed(*own), own, upstream)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), theirs, rtol=2 * torch.finfo(dtype).eps, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_silu(states: Tensor, dtype: torch.dtype) -> None:
    own = (4 * states.to(dtype)).detach().requires_grad_()
    exact = own.detach().double().requires_grad_()
    upstream = drawn(*states.shape, dtype=dtype, seed=2)
    (found,) = torch.autograd.grad(activated(own), own, upstream)
    (expected,) = torch.autograd.grad(exact * exact.sigmoid(), exact, upstream.double())
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_frozen_norm_passes_gradients_on(states: Tensor) -> None:
    """As under an adapter, which trains neither norms nor embeddings."""
    given = states.detach().requires_grad_()
    weight = drawn(24, seed=1)
    normed(given, weight).sum().backward()
    assert given.grad is not None
    assert given.grad.abs().sum() > 0
    assert weight.grad is None


def computing(model: PreTrainedModel) -> list[str]:
    """The modules whose forward was replaced."""
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


def test_every_layer_norm_and_activation_is_covered(tiny: Tiny, family: str) -> None:
    model = tiny(family)
    install(model)
    layer = ["", ".mlp.act_fn", ".input_layernorm", ".post_attention_layernorm"]
    layer += [".self_attn.q_norm", ".self_attn.k_norm"] if family == "qwen3" else []
    each = {f"model.layers.{number}{part}" for number, part in product(range(2), layer)}
    assert set(computing(model)) == each | {"model.norm"}


def test_norm_of_another_formula_is_left_alone() -> None:
    """Gemma adds 1 to its weights, and rounds elsewhere."""
    config = GemmaConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, head_dim=8,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = GemmaForCausalLM(config)
    install(model)
    assert computing(model) == []


def hidden(model: PreTrainedModel) -> Tensor:
    layout = PackedLayout([7, 3], model.device)
    ids = torch.arange(10, device=model.device)[None]
    out: Tensor = model.base_model(
        input_ids=ids, position_ids=layout.positions_N[None], use_cache=False, layout=layout
    ).last_hidden_state
    return out


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_full_precision_keeps_its_bits(tiny: Tiny, family: str, device: str) -> None:
    model = tiny(family)
    nn.Module.to(model, device)
    before = hidden(model)
    install(model)
    assert torch.equal(hidden(model), before)


@pytest.mark.parametrize(
    "module", [LlamaRMSNorm(24), SiLUActivation(), nn.SiLU()], ids=lambda each: type(each).__name__
)
def test_half_precision_on_a_cpu_keeps_its_bits(tiny: Tiny, module: nn.Module) -> None:
    model = tiny()
    model.add_module("another", copy.deepcopy(module).half())
    states = drawn(3, 24).cpu().half()
    install(model)
    assert "another" in computing(model)
    assert torch.equal(model.get_submodule("another")(states), module.half()(states))


def test_copy_computes_with_its_own_weights(tiny: Tiny) -> None:
    model = tiny()
    install(model)
    before = hidden(model)
    copied = copy.deepcopy(model)
    assert computing(copied) == computing(model)
    with torch.no_grad():
        copied.model.norm.weight.mul_(2)
    assert torch.equal(hidden(model), before)
    torch.testing.assert_close(hidden(copied), 2 * before)


def test_saved_and_loaded_model_is_the_same(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("qwen3")
    install(model)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path, torch.device("cpu"), torch.float32)
    assert set(computing(loaded)) == set(computing(model))
    assert torch.equal(hidden(loaded), hidden(model))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [24, 576])
def test_engine_norms_a_sum_as_the_trainer_norms_it(width: int, dtype: torch.dtype) -> None:
    residual, delta = drawn(7, width, dtype=dtype), drawn(7, width, dtype=dtype, seed=1)
    weight = drawn(width, dtype=dtype, seed=2)
    expected = normed(residual + delta, weight)
    assert torch.equal(pointwise.add_rms_norm(delta, residual, weight, EPS), expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_engine_activates_as_the_trainer(dtype: torch.dtype) -> None:
    both = 4 * drawn(5, 2 * 2100, dtype=dtype)
    gate, up = both.chunk(2, 1)
    assert torch.equal(pointwise.silu_mul(both), activated(gate) * up)


@pytest.mark.parametrize("dtype", HALVES)
def test_engine_norms_and_rotates_heads_as_the_trainer(dtype: torch.dtype) -> None:
    tokens, heads, key_heads, width = 9, 4, 2, 16
    qkv = drawn(tokens, (heads + 2 * key_heads) * width, dtype=dtype)
    of_query, of_key = (drawn(width, dtype=dtype, seed=seed) for seed in (1, 2))
    angles = drawn(tokens, width // 2, seed=3).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    place = torch.arange(tokens, dtype=torch.int32, device=DEVICE)
    keys, values = (torch.zeros(1, key_heads, PAGE_SIZE, width, dtype=dtype, device=DEVICE) for _ in range(2))
    found = rotate_and_store(qkv, cos, sin, place, place, keys, values, of_query, of_key, EPS, heads, key_heads)
    query, key, _ = qkv.view(tokens, -1, width).split([heads, key_heads, key_heads], 1)
    query, key = apply_rotary_pos_emb(normed(query, of_query), normed(key, of_key), cos, sin)
    assert torch.equal(found, query)
    assert torch.equal(keys[0, :, :tokens].transpose(0, 1), key)


def graph(out: Tensor) -> set[str]:
    """The names of all that a tensor was computed by."""
    found, ahead = set(), [out.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in found:
            found.add(node)
            ahead += [following for following, _ in node.next_functions]
    return {type(node).__name__ for node in found}


LAYER = {f"{each.__name__}Backward" for each in (_AddNormProject, _AttendRotated, _GateProject)}


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "kernel"), [(torch.bfloat16, True), (torch.float16, True), (torch.float32, False)])
def test_layers_take_the_kernels_in_half_precision(tiny: Tiny, dtype: torch.dtype, kernel: bool) -> None:
    model = on_gpu(tiny("qwen3"), dtype)
    install(model)
    assert graph(hidden(model)) >= LAYER if kernel else not LAYER & graph(hidden(model))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_have_the_bits_of_their_modules(tiny: Tiny, family: str, dtype: torch.dtype) -> None:
    """Norm by norm, product by product: without the layer's own forward the modules inside it compute."""
    disable_split_k()
    model = on_gpu(tiny(family), dtype)
    install(model)
    together = hidden(model)
    for layer in model.model.layers:
        del layer.forward
    apart = hidden(model)
    assert not LAYER & graph(apart)
    assert torch.equal(together, apart)


@pytest.mark.gpu
def test_weights_of_one_input_lie_together(tiny: Tiny) -> None:
    model = on_gpu(tiny("qwen2"), torch.bfloat16)
    install(model)
    attends = model.model.layers[0].self_attn
    parts = (attends.q_proj, attends.k_proj, attends.v_proj)
    assert len({part.weight.untyped_storage().data_ptr() for part in parts}) == 1
    assert len({part.bias.untyped_storage().data_ptr() for part in parts}) == 1


NAMES = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


def setting(name: str) -> tuple[bool, bool]:
    """Whether sums may be of reduced precision, and whether they may be split."""
    return getattr(matmul, name), getattr(matmul, f"{name}_split_k")


@pytest.fixture(autouse=True)
def loose() -> Iterator[None]:
    """PyTorch as it is at first, and afterwards as other tests left it."""
    before = {name: setting(name) for name in NAMES}
    for name in NAMES:
        setattr(matmul, name, (True, True))
    yield
    for name, value in before.items():
        setattr(matmul, name, value)


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_neither_reduced_nor_split(name: str) -> None:
    assert setting(name) == (True, True)
    disable_split_k()
    assert setting(name) == (False, False)
