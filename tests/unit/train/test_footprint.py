"""Predicted memory next to what is really allocated: on a CPU by counting tensors, on an H200 by published figures."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from sleuth.bench.models import quickstart_tokens, random_model, random_policy
from sleuth.engines.paged.kv_cache import KVCache
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.errors import InputError
from sleuth.model.attention import AttentionShape
from sleuth.model.packing import pack, row
from sleuth.model.shapes import SHAPES, published_shape
from sleuth.train.accelerators import GIB, GPUS, find
from sleuth.train.footprint import (
    ModelSize,
    Setup,
    activations,
    host_state,
    kv_cache,
    layer_activations,
    moments,
    predict,
    resident,
)
from sleuth.train.optimiser import MASTER, Optimiser

CPU = torch.device("cpu")
TINY = ModelSize.of(published_shape("tiny"))
SMALL = ModelSize.of(published_shape("smollm2-135m"))
LARGE = ModelSize.of(published_shape("qwen2.5-3b"))
H200 = GPUS["h200"]
ON_CPU = Setup(TINY, find("cpu"), pack=64, scored=60, context=32, slots=4, half=False)


def test_sizes_of_a_published_model() -> None:
    assert (LARGE.parameters, LARGE.tied, LARGE.fused) == (3_085_938_688, True, True)
    assert LARGE.active == LARGE.parameters
    untied = ModelSize.of(published_shape("qwen2.5-7b"))
    assert untied.parameters - untied.active == untied.head


def test_experts_that_are_not_chosen_multiply_nothing() -> None:
    dense = dict(SHAPES["tiny"]) | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    config = AutoConfig.for_model(**dense, num_local_experts=8, num_experts_per_tok=2)
    size = ModelSize.of(config)
    assert not size.fused
    assert size.active < 0.5 * size.parameters


def test_config_of_no_causal_model() -> None:
    with pytest.raises(InputError, match="no causal model"):
        ModelSize.of(AutoConfig.for_model("t5"))


@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj"])
def test_adapter_has_the_parameters_of_peft(targets: str) -> None:
    from sleuth.model import lora

    model = random_model(published_shape("tiny"), CPU)
    lora.attach(model, lora.LoRA(4, 8.0, targets))
    real = sum(each.numel() for each in model.parameters() if each.requires_grad)
    assert TINY.adapter(4, targets) == real


def _saved_bytes(shape: str, layers: int, rank: int) -> int:
    """Bytes that a forward pass of 64 tokens saves for its backward pass, without the parameters."""
    config = published_shape(shape)
    config.num_hidden_layers = layers
    policy = random_policy(config, quickstart_tokens(), CPU, rank=rank)
    (packed,) = pack([row(list(range(1, 17)), [0.0] + [1.0] * 15) for _ in range(4)], 64, CPU)
    parameters = {each.untyped_storage().data_ptr() for each in policy.model.parameters()}
    found: dict[int, torch.Tensor] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        policy.states(packed)
    return sum(each.untyped_storage().nbytes() for each in found.values())


@pytest.mark.parametrize("rank", [0, 4])
def test_a_layer_saves_the_predicted_bytes(rank: int) -> None:
    four, two = (_saved_bytes("tiny", layers, rank) for layers in (4, 2))
    assert (four - two) // 2 == 64 * layer_activations(ON_CPU, TINY, rank)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masters_moments_and_gradients_are_those_of_the_optimiser(
    dtype: torch.dtype, tiny: Callable[..., PreTrainedModel]
) -> None:
    model = tiny()
    for each in model.parameters():
        each.data = each.data.to(dtype)
    size = ModelSize.of(model.config)
    optimiser = Optimiser(model.named_parameters(), learning_rate=1e-3, weight_decay=0.0)
    optimiser.zero()
    torch.stack([each.float().sum() for each in model.parameters()]).sum().backward()
    optimiser.step(1e-3, 1.0)
    state = optimiser.state()
    half = dtype is torch.bfloat16
    parts = resident(replace(ON_CPU, policy=size, half=half))
    masters = sum(each.numel() * 4 for name, each in state.items() if name.startswith(MASTER))
    kept = sum(each.numel() * 4 for name, each in state.items() if name.startswith("exp_avg"))
    assert parts["fp32 masters"] == masters
    assert parts["moments"] == kept
    assert parts["weights"] == sum(each.numel() * each.element_size() for each in model.parameters())
    assert parts["gradients"] == 4 * sum(each.numel() for each in model.parameters())


def test_pages_are_those_of_the_cache() -> None:
    shape = AttentionShape.of(TINY.config, torch.float32)
    cache = KVCache(shape, 4 * 3, 4, 33, CPU)
    bytes_of = sum(each.numel() * 4 for each in (*cache.keys, *cache.values))
    assert kv_cache(ON_CPU) == bytes_of  # 4 slots of 33 tokens: 3 pages each
    page = PAGE_SIZE * shape.bytes_per_token
    assert kv_cache(replace(ON_CPU, share=1.5 * page / ON_CPU.device.memory)) == page
    assert kv_cache(replace(ON_CPU, engine="elsewhere")) == 0
    assert kv_cache(replace(ON_CPU, engine="server", share=0.5)) == ON_CPU.device.memory // 2


# Peaks of docs/benchmarks.md, measured at a852bb5 on an H200: bench train with AdamW, and bench step with KL.
@pytest.mark.parametrize(
    ("setup", "measured"),
    [
        (Setup(LARGE, H200, pack=8000, scored=8000, context=1000, slots=1, engine="elsewhere"), 71.9),
        (Setup(SMALL, H200, pack=32_768, scored=32_768, context=2048, slots=1, engine="elsewhere"), 15.0),
        (Setup(LARGE, H200, 16_128, 18 * 240, 897, slots=320, share=0.2, reference=True), 105.0),
    ],
    ids=["3B", "135M", "3B with engine and reference"],
)
def test_peaks_measured_on_a_gpu(setup: Setup, measured: float) -> None:
    assert predict(setup).peak / GIB == pytest.approx(measured, rel=0.05)


def test_each_saving_saves() -> None:
    base = Setup(LARGE, H200, 16_384, 8192, 4096, 128, reference=True)
    full = predict(base)
    savings = {"recompute": 1.0, "optimiser": "adamw8bit", "offload": True, "rank": 32, "pack": 4096, "share": 0.05}
    for name, value in savings.items():
        saved = predict(replace(base, **{name: value}))  # type: ignore[arg-type]
        assert saved.needed < full.needed, name
    assert predict(replace(base, rank=32)).parts["reference model"] == 0
    assert host_state(replace(base, offload=True)) == 12 * LARGE.parameters
    assert full.largest_phase == "train"


def test_recomputation_keeps_the_inputs_of_layers() -> None:
    half, whole = (replace(ON_CPU, recompute=share) for share in (0.5, 1.0))
    full, less, least = (activations(setup, TINY, 0) for setup in (ON_CPU, half, whole))
    inputs = 64 * TINY.width * 4
    layer = 64 * layer_activations(ON_CPU, TINY, 0)
    assert full - less == less - least == layer - inputs


def test_eight_bit_moments() -> None:
    setup = replace(ON_CPU, optimiser="adamw8bit")
    assert moments(setup, 256_000, 0) == 2 * 256_000 + 1000 * 8
    assert moments(setup, 1000, 1000) == 8000


def test_teacher_is_frozen_weights_and_a_pass_of_its_own() -> None:
    base = Setup(TINY, H200, 16_384, 8192, 4096, 128)
    taught = predict(replace(base, teacher=LARGE))
    assert taught.parts["teacher"] == 2 * LARGE.parameters
    assert predict(base).parts["teacher"] == 0
    assert resident(replace(base, teacher=LARGE, ranks=4))["teacher"] == LARGE.parameters // 2
    assert "score" not in predict(base).phases
    assert taught.phases["score"] > sum(resident(replace(base, teacher=LARGE)).values())


def test_critic_and_ranks() -> None:
    base = Setup(LARGE, H200, 16_384, 8192, 4096, 128)
    parts = resident(replace(base, critic=LARGE))
    assert parts["critic"] == pytest.approx(18 * LARGE.parameters, rel=0.01)
    four = resident(replace(base, ranks=4, engine="copy"))
    assert four["weights"] == LARGE.parameters  # fp32 shards of four
    assert four["engine's weights"] == 2 * LARGE.parameters
    assert predict(replace(base, ranks=4, engine="copy")).peak < predict(base).peak
