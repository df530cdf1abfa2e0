"""Models outside the Llama family, and adapters, run through their own modules on the same pages."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.paged.model_runner import Backend
from sleuth.errors import EngineFailure, InputError
from sleuth.model import llama_family, lm_head
from sleuth.model.attention import PackedLayout
from sleuth.model.load import load
from sleuth.model.tokens import Tokens

# What these do otherwise: one weight for queries, keys and values; scaled embeddings; biases; heads turned in part.
STRANGERS: dict[str, dict[str, Any]] = {
    "phi3": {"num_key_value_heads": 2, "pad_token_id": 0},
    "gemma": {"num_key_value_heads": 1, "head_dim": 8},
    "starcoder2": {"num_key_value_heads": 2, "sliding_window": None},
    "gpt_neox": {},
    "olmo": {"num_key_value_heads": 2},
}
GEMMA = {"num_key_value_heads": 2, "head_dim": 8}
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 512,
}  # fmt: skip


@pytest.fixture
def saved(tmp_path: Path, tokens: Tokens) -> Callable[..., Path]:
    """Makes the folder of a small model of a kind."""

    def make(kind: str, **settings: Any) -> Path:
        config = AutoConfig.for_model(
            kind, **SIZES, vocab_size=len(tokens.tokenizer), bos_token_id=None, eos_token_id=tokens.eos_id, **settings
        )
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        dice = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, float("norm" in name and "weight" in name), 0.3, generator=dice)
        model.save_pretrained(tmp_path / kind)
        return tmp_path / kind

    return make


def sampled(folder: Path, tokens: Tokens, backend: Backend, count: int, device: str = "cpu") -> list[Completion]:
    """Two rows that begin alike, and one of its own."""
    engine = PagedEngine(
        load(folder, torch.device(device), torch.float32), tokens, slots=2, context=64, backend=backend
    )
    texts = ["Who wrote the book that Ada Lovelace read in Oslo?"] * 2 + ["Ada"]
    calls = [(tokens.encode(text), Sampling(count, seed=seed)) for seed, text in enumerate(texts)]

    async def main() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(*call) for call in calls))

    return asyncio.run(main())


@pytest.mark.parametrize("kind", STRANGERS)
def test_it_is_computed_as_hugging_face_does(saved: Callable[..., Path], tokens: Tokens, kind: str) -> None:
    folder = saved(kind, **STRANGERS[kind])
    stock = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    assert llama_family.difference(stock) is not None
    first, _, _ = sampled(folder, tokens, "torch", 8)
    prompt = tokens.encode("Who wrote the book that Ada Lovelace read in Oslo?")
    with torch.no_grad():
        logits = stock(torch.tensor([[*prompt, *first.ids]])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits, -1)[range(len(first.ids)), list(first.ids)]
    assert first.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


# Interpreted, few kinds and tokens; on a GPU all of them, and steps captured as graphs.
ON_GPU = [pytest.param(kind, "cuda", 24, marks=pytest.mark.gpu) for kind in STRANGERS]


@pytest.mark.parametrize(("kind", "device", "count"), [("phi3", "cpu", 3), ("gemma", "cpu", 3), *ON_GPU])
def test_kernels_give_what_plain_attention_gives(
    saved: Callable[..., Path], tokens: Tokens, kind: str, device: str, count: int
) -> None:
    folder = saved(kind, **STRANGERS[kind])
    by_kernels, plainly = sampled(folder, tokens, "triton", count, device), sampled(folder, tokens, "torch", count)
    for mine, theirs in zip(by_kernels, plainly, strict=True):
        assert mine.ids == theirs.ids
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.gpu
def test_parameters_that_moved_away_from_captured_steps_are_noticed(saved: Callable[..., Path], tokens: Tokens) -> None:
    model = load(saved("llama", num_key_value_heads=2, pad_token_id=0), torch.device("cuda"), torch.float32)
    engine = PagedEngine(model, tokens, slots=2, context=64)
    asyncio.run(engine.generate(tokens.encode("Ada"), Sampling(4)))
    engine.publish(None, 1)
    weight = model.get_output_embeddings().weight
    weight.data = weight.data.clone()
    with pytest.raises(EngineFailure, match="storage"):
        engine.publish(None, 2)


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("gemma2", GEMMA, "4096 tokens"),
        ("gemma2", {**GEMMA, "sliding_window": None, "layer_types": ["full_attention"] * 2}, "caps its logits"),
        ("starcoder2", {"num_key_value_heads": 2, "sliding_window": 16}, "16 tokens"),
        ("mistral", {"num_key_value_heads": 2, "sliding_window": 16}, "16 tokens"),
    ],
)
def test_what_cannot_be_served_exactly_is_refused_with_the_reason(
    saved: Callable[..., Path], tokens: Tokens, kind: str, settings: dict[str, Any], reason: str
) -> None:
    folder = saved(kind, **settings)
    with pytest.raises(InputError, match=reason):
        load(folder, torch.device("cpu"), torch.float32)


Tiny = Callable[..., PreTrainedModel]
EVERYWHERE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Interpreted, the kernels sample little.
backends = pytest.mark.parametrize(
    ("backend", "device", "count"),
    [("torch", "cpu", 12), ("triton", "cpu", 3), pytest.param("triton", "cuda", 24, marks=pytest.mark.gpu)],
)


def adapted(model: PreTrainedModel, targets: list[str]) -> PeftModel:
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=targets, lora_dropout=0.5)
    wrapped = get_peft_model(model, settings)
    assert isinstance(wrapped, PeftModel)
    return wrapped


def adapters(model: PreTrainedModel) -> Iterator[torch.nn.Parameter]:
    return (parameter for name, parameter in model.named_parameters() if "lora_" in name)


def redraw(model: PreTrainedModel, seed: int) -> None:
    """Other adapters, written in place, as an optimizer's step would."""
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapters(model):
            parameter.copy_(torch.randn(parameter.shape, generator=dice) / 2)


@torch.no_grad()
def trained_on(model: PreTrainedModel, prompt: list[int], completion: Completion) -> Tensor:
    """The logprobs of the training forward."""
    ids = torch.tensor([*prompt, *completion.ids], device=model.device)
    layout = PackedLayout([len(ids)], ids.device)
    hidden = model.base_model(
        input_ids=ids[None], position_ids=layout.positions_N[None], use_cache=False, layout=layout
    ).last_hidden_state[0, len(prompt) - 1 : -1]
    projection = lm_head.output_projection(model)
    logprobs, _ = lm_head.score_tokens(hidden, projection.weight, projection.bias, ids[len(prompt) :], 1.0)
    return logprobs


@backends
@pytest.mark.parametrize("targets", [EVERYWHERE, ["q_proj", "v_proj"]], ids=["everywhere", "some"])
def test_adapters_are_sampled_with_and_published_in_place(
    tiny: Tiny, tokens: Tokens, targets: list[str], backend: Backend, device: str, count: int
) -> None:
    plain_model = torch.nn.Module.to(tiny(), device)
    base = adapted(tiny(), targets).get_base_model()
    assert isinstance(base, PreTrainedModel)
    torch.nn.Module.to(base, device)
    redraw(base, 0)
    base.eval()
    engine = PagedEngine(base, tokens, slots=2, context=64, backend=backend)
    prompt = tokens.encode("Who wrote the book?")
    plain = asyncio.run(
        PagedEngine(plain_model, tokens, slots=2, context=64, backend=backend).generate(prompt, Sampling(count, seed=1))
    )
    said = [plain]
    for version in range(2):
        redraw(base, version)
        engine.publish(None, version)
        completion = asyncio.run(engine.generate(prompt, Sampling(count, seed=1)))
        assert set(completion.versions) == {version}
        assert completion.logprobs == pytest.approx(trained_on(base, prompt, completion).tolist(), abs=1e-4)
        said.append(completion)
    assert len({completion.logprobs for completion in said}) == 3


def test_adapters_can_be_trained_after_the_engine_has_sampled(tiny: Tiny, tokens: Tokens) -> None:
    base = adapted(tiny(), EVERYWHERE).get_base_model()
    assert isinstance(base, PreTrainedModel)
    base.train()
    engine = PagedEngine(base, tokens, slots=2, context=64, backend="triton")
    asyncio.run(engine.generate(tokens.encode("Who?"), Sampling(2)))
    assert base.training
    layout = PackedLayout([3], torch.device("cpu"))
    ids = torch.tensor([[5, 6, 7]])
    states = base.base_model(input_ids=ids, position_ids=layout.positions_N[None], use_cache=False, layout=layout)
    states.last_hidden_state.square().sum().backward()
    gradients = [parameter.grad for parameter in adapters(base)]
    assert gradients
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    torch.optim.SGD(adapters(base), lr=0.1).step()
    engine.publish(None, 1)
    assert asyncio.run(engine.generate(tokens.encode("Who?"), Sampling(2))).versions == (1, 1)


def test_a_head_with_an_adapter_is_refused(tiny: Tiny, tokens: Tokens) -> None:
    base = adapted(tiny(), ["lm_head"]).get_base_model()
    assert isinstance(base, PreTrainedModel)
    with pytest.raises(InputError, match="linear layer"):
        PagedEngine(base, tokens, slots=2, context=64)
