"""Chunked logprobs and entropies equal those of the full logits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertModel, PreTrainedModel

from sleuth.errors import InputError
from sleuth.model import lm_head
from sleuth.model.kernel_patch import disable_split_k

WIDTH, WORDS = 6, 11
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(count: int, biased: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    dice = torch.Generator().manual_seed(count)
    hidden = torch.randn(count, WIDTH, generator=dice).requires_grad_()
    weight = torch.randn(WORDS, WIDTH, generator=dice).requires_grad_()
    bias = torch.randn(WORDS, generator=dice).requires_grad_() if biased else None
    return hidden, weight, bias, torch.randint(WORDS, (count,), generator=dice)


def naive(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    probability = torch.softmax(logits / temperature, -1)
    return torch.log_softmax(logits / temperature, -1)[range(len(target)), target], -(
        probability * probability.log()
    ).sum(-1)


@pytest.mark.parametrize("count", [1, 7, lm_head.CHUNK - 1, lm_head.CHUNK, lm_head.CHUNK + 1, 2 * lm_head.CHUNK + 5])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_scores_and_gradients(count: int, biased: bool, temperature: float) -> None:
    hidden, weight, bias, target = inputs(count, biased)
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    weights = torch.randn(2, count, generator=torch.Generator().manual_seed(1))
    found = lm_head.score_tokens(hidden, weight, bias, target, temperature)
    expected = naive(hidden, weight, bias, target, temperature)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    gradients = [
        torch.autograd.grad((weights[0] * logprob + weights[1] * entropy).sum(), leaves)
        for logprob, entropy in (found, expected)
    ]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-3, rtol=1e-4)


def test_no_tokens_have_no_scores_and_a_gradient_of_zero() -> None:
    hidden, weight, _, target = inputs(0, biased=False)
    logprob, entropy = lm_head.score_tokens(hidden, weight, None, target, 1.0)
    assert (logprob.shape, entropy.shape) == ((0,), (0,))
    (gradient,) = torch.autograd.grad(logprob.sum(), [weight])
    assert not gradient.any()


def test_scores_are_fp32_whatever_the_weights() -> None:
    hidden, weight, bias, target = (None if each is None else each.detach() for each in inputs(9, biased=True))
    assert hidden is not None
    assert weight is not None
    assert bias is not None
    assert target is not None
    half = torch.bfloat16
    found = lm_head.score_tokens(hidden.to(half), weight.to(half), bias.to(half), target, 1.0)
    assert [scores.dtype for scores in found] == [torch.float32] * 2


def test_fp32_logits_are_the_plain_product_bit_for_bit() -> None:
    hidden, weight, bias, _ = inputs(9, biased=True)
    assert bias is not None
    assert torch.equal(lm_head.logits(hidden, weight, None), hidden @ weight.t())
    assert torch.equal(lm_head.logits(hidden, weight, bias), hidden @ weight.t() + bias)


@pytest.mark.parametrize("half", lm_head.HALF_DTYPES)
def test_logits_of_half_precision_are_not_rounded_to_it(half: torch.dtype) -> None:
    hidden, weight, _, _ = (None if each is None else each.detach() for each in inputs(9, biased=False))
    assert hidden is not None
    assert weight is not None
    hidden, weight = hidden.to(half), weight.to(half)
    found = lm_head.logits(hidden, weight, None)
    torch.testing.assert_close(found.double(), hidden.double() @ weight.double().t(), atol=1e-5, rtol=1e-5)
    assert not torch.equal(found, found.to(half).float())


@pytest.mark.gpu
@pytest.mark.parametrize("count", [0, 1, 77])
@pytest.mark.parametrize("half", lm_head.HALF_DTYPES)
@pytest.mark.parametrize("words", [1000, 1253])
def test_logits_and_gradients_of_half_precision_on_a_gpu(words: int, count: int, half: torch.dtype) -> None:
    disable_split_k()
    dice = torch.Generator(device="cuda").manual_seed(count)
    width = 576
    hidden = torch.randn(count, width, generator=dice, device="cuda").to(half).requires_grad_()
    weight = torch.randn(words, width, generator=dice, device="cuda").mul(0.05).to(half).requires_grad_()
    found = lm_head.logits(hidden, weight, None)
    expected = hidden.double() @ weight.double().t()
    assert found.dtype == torch.float32
    # Sums of 576 products in fp32: a bf16 result would be off by up to 2 ** -8 of itself.
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)
    factors = torch.randn(found.shape, generator=dice, device="cuda")
    mine = torch.autograd.grad((found * factors).sum(), [hidden, weight])
    theirs = torch.autograd.grad((expected * factors.double()).sum(), [hidden, weight])
    for ours, exact in zip(mine, theirs, strict=True):
        assert ours.dtype == half
        torch.testing.assert_close(ours, exact, atol=0.1, rtol=0.02)


def test_the_whole_vocabulary_of_all_tokens_is_never_held() -> None:
    """The graph of a pass keeps the hidden states of each chunk, not its logits."""
    hidden, weight, _, target = inputs(2 * lm_head.CHUNK, biased=False)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        lm_head.score_tokens(hidden, weight, None, target, 1.0)
    assert max(kept, default=0) < lm_head.CHUNK * WORDS


class Largest(TorchDispatchMode):
    """Watches every operation for the largest tensor any of them makes."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [each for each in tree_leaves(out) if isinstance(each, Tensor)]
        self.bytes = max([self.bytes, *(each.untyped_storage().nbytes() for each in made)])
        return out


Score = Callable[..., tuple[Tensor, Tensor]]
ROWS = 4


def by_kernels(*call: Any) -> tuple[Tensor, Tensor]:
    """What a GPU computes in half precision, here with small chunks and in whatever precision."""
    found: tuple[Tensor, Tensor] = lm_head.ScoreTokens.apply(*call, ROWS)  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize(("score", "most"), [(lm_head.score_tokens, lm_head.CHUNK), (by_kernels, ROWS)])
def test_no_tensor_of_all_tokens_and_words_is_ever_made(score: Score, most: int) -> None:
    """Neither forwards nor backwards is any tensor larger than the logits of one chunk."""
    hidden, weight, _, target = inputs(2 * most, biased=False)
    room = 4 * most * -(-WORDS // lm_head.ALIGNMENT) * lm_head.ALIGNMENT
    assert hidden.nbytes <= room
    own = [each.detach().to(DEVICE).requires_grad_() for each in (hidden, weight)]
    target = target.to(DEVICE)
    with Largest() as seen:  # type: ignore[no-untyped-call]
        logprob, entropy = score(*own, None, target, 1.0)
        (logprob + entropy).sum().backward()
    assert 4 * most * WORDS <= seen.bytes <= max(room, weight.nbytes) < 2 * 4 * most * WORDS


@pytest.mark.parametrize("count", [0, 1, 4, 11])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_kernels_give_scores_and_gradients(count: int, biased: bool, temperature: float) -> None:
    hidden, weight, bias, target = inputs(count, biased)
    leaves = [leaf.detach().to(DEVICE).requires_grad_() for leaf in (hidden, weight, bias) if leaf is not None]
    call = (leaves[0], leaves[1], leaves[2] if biased else None, target.to(DEVICE), temperature)
    weights = torch.randn(2, count, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    found, expected = by_kernels(*call), naive(*call)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    gradients = [
        torch.autograd.grad((weights[0] * logprob + weights[1] * entropy).sum(), leaves)
        for logprob, entropy in (found, expected)
    ]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_kernels_pass_over_words_without_probability() -> None:
    """As where a vocabulary is filled up with words that are never meant: log 0 times 0 is 0."""
    hidden, weight, _, target = inputs(5, biased=False)
    hidden, weight, target = hidden.detach().to(DEVICE), weight.to(DEVICE), target.clamp(max=WORDS - 3).to(DEVICE)
    hidden.requires_grad_()
    bias = torch.zeros(WORDS, device=DEVICE)
    bias[-2:] = -1e4
    found, expected = by_kernels(hidden, weight, bias, target, 1.0), naive(hidden, weight[:-2], None, target, 1.0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    mine, theirs = (torch.autograd.grad(torch.stack(each).sum(), hidden) for each in (found, expected))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_chunks_are_even_and_their_logits_bounded() -> None:
    assert lm_head.chunk_rows(8192, 151_936) == 2048
    assert lm_head.chunk_rows(2100, 151_936) == 1152
    assert lm_head.chunk_rows(100, 151_936) == 100
    assert lm_head.chunk_rows(0, 151_936) == 0
    for tokens, words in ((10**6, 151_936), (10**6, 49_152), (50_000, 262_144)):
        assert lm_head.chunk_rows(tokens, words) * words * 4 <= lm_head.CHUNK_BYTES


@pytest.mark.gpu
@pytest.mark.parametrize("words", [49_152, 50_257])
def test_memory_of_the_head_on_a_gpu(words: int) -> None:
    """Forwards one chunk of logits; backwards also their gradient and the fp32 gradient of the weight."""
    disable_split_k()
    count, width = 32_768, 64
    hidden = torch.randn(count, width, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(words, width, device="cuda").mul(0.1).bfloat16().requires_grad_()
    target = torch.randint(words, (count,), device="cuda")

    def peak(step: Callable[[], object]) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    chunk, small = lm_head.CHUNK_BYTES, 64 << 20
    assert 4 * count * words > 4 * chunk
    with torch.no_grad():
        assert peak(lambda: lm_head.score_tokens(hidden, weight, None, target, 1.0)) < chunk + small
    logprob, entropy = lm_head.score_tokens(hidden, weight, None, target, 1.0)
    assert peak((logprob + 0.1 * entropy).sum().backward) < 1.5 * chunk + small


@pytest.mark.gpu
@pytest.mark.parametrize("half", lm_head.HALF_DTYPES)
@pytest.mark.parametrize("words", [1000, 1253])
def test_scores_and_gradients_of_half_precision_on_a_gpu(words: int, half: torch.dtype) -> None:
    disable_split_k()
    dice = torch.Generator(device="cuda").manual_seed(0)
    hidden = torch.randn(700, 64, generator=dice, device="cuda").to(half)
    weight = torch.randn(words, 64, generator=dice, device="cuda").mul(0.2).to(half)
    target = torch.randint(words, (700,), generator=dice, device="cuda")
    own = [each.clone().requires_grad_() for each in (hidden, weight)]
    exact = [each.float().requires_grad_() for each in (hidden, weight)]
    found = lm_head.score_tokens(own[0], own[1], None, target, 0.9)
    expected = naive(exact[0], exact[1], None, target, 0.9)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    gradients = [
        torch.autograd.grad(torch.stack(each).sum(), leaves) for each, leaves in ((found, own), (expected, exact))
    ]
    for mine, theirs in zip(*gradients, strict=True):
        assert mine.dtype == half
        assert float((mine.float() - theirs).norm() / theirs.norm()) < 1e-2


def test_the_projection_of_a_causal_model(tiny: Callable[..., PreTrainedModel]) -> None:
    model = tiny("llama")
    found = lm_head.output_projection(model)
    assert isinstance(found, nn.Linear)
    assert found.weight is model.get_input_embeddings().weight


def test_a_model_without_projection_is_refused() -> None:
    config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    with pytest.raises(InputError, match=r"BertModel.*NoneType"):
        lm_head.output_projection(BertModel(config))
