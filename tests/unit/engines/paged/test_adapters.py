"""LoRA adapters live in the model that trainer and engine share."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.paged.runner import Backend
from sleuth.errors import InputError
from sleuth.model import lm_head
from sleuth.model.attention import PackedLayout
from sleuth.model.tokens import Tokens

Tiny = Callable[..., PreTrainedModel]
EVERYWHERE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Interpreted, the kernels sample little.
backends = pytest.mark.parametrize(
    ("backend", "device", "count"),
    [("plain", "cpu", 12), ("triton", "cpu", 3), pytest.param("triton", "cuda", 24, marks=pytest.mark.gpu)],
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
