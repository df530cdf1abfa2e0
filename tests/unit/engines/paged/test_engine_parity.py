"""The engine's logprobs equal those of a plain forward pass, whatever is cached or in the batch."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.model.tokens import Tokens

Tiny = Callable[..., PreTrainedModel]

CLOSE = 1e-4


class Computed:
    """Counts the tokens that go through a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.tokens: list[int] = []
        model.get_input_embeddings().register_forward_hook(
            lambda _module, ids, _out: self.tokens.append(ids[0].numel())
        )

    def since(self) -> int:
        """Tokens computed since the last time this was asked."""
        count = sum(self.tokens)
        self.tokens.clear()
        return count


def assert_parity(stock: PreTrainedModel, prompt: Sequence[int], completion: Completion, temperature: float) -> None:
    """Compares with a stock model that reads everything at once, without a cache."""
    with torch.no_grad():
        logits = stock(torch.tensor([[*prompt, *completion.ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits / temperature, -1)[range(len(completion.ids)), completion.ids]
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=CLOSE)


@pytest.fixture(params=["eager", "sdpa"])
def stock(request: pytest.FixtureRequest, tiny: Tiny, family: str) -> PreTrainedModel:
    return tiny(family, attention=request.param)


def prompts(tokens: Tokens) -> list[list[int]]:
    """Prompts from one token to many, some with a common beginning, one of them twice."""
    texts = ("Oslo", "Who", "Who wrote the book?", "Who wrote the book that Ada read?", "<search> Ada </search>" * 9)
    return [tokens.encode(text) for text in (*texts, texts[2], "Ada Lovelace " * 20, "I", texts[3] * 3)]


def test_alone(stock: PreTrainedModel, family: str, tiny: Tiny, tokens: Tokens) -> None:
    engine = PagedEngine(tiny(family), tokens, slots=1, context=128)
    for temperature in (0.3, 1.0, 1.7):
        for prompt in prompts(tokens)[:4]:
            completion = asyncio.run(engine.generate(prompt, Sampling(20, temperature, seed=3)))
            assert_parity(stock, prompt, completion, temperature)


def test_joining_and_leaving_at_different_times(
    stock: PreTrainedModel, family: str, tiny: Tiny, tokens: Tokens
) -> None:
    """Three slots for nine requests of different lengths, which come one after the other while others run."""
    engine = PagedEngine(tiny(family), tokens, slots=3, context=128)
    asked = prompts(tokens)

    async def call(number: int) -> Completion:
        for _ in range(7 * number):
            await asyncio.sleep(0)
        return await engine.generate(asked[number], Sampling(3 + 5 * (number % 4), 1.0, seed=number))

    async def main() -> list[Completion]:
        return await asyncio.gather(*map(call, range(len(asked))))

    completions = asyncio.run(main())
    assert sum(len(completion.ids) for completion in completions) > 50
    for prompt, completion in zip(asked, completions, strict=True):
        assert_parity(stock, prompt, completion, 1.0)


@pytest.mark.parametrize("slots", [2, 8])
def test_later_turns(stock: PreTrainedModel, family: str, tiny: Tiny, tokens: Tokens, slots: int) -> None:
    """Five callers of four turns each; with two slots they take them from each other in between."""
    model = tiny(family)
    computed = Computed(model)
    engine = PagedEngine(model, tokens, slots=slots, context=256)
    observation = tokens.encode("\n\n<information>Doc 1(Title: Ada) Lisbon</information>\n\n")
    turns: list[tuple[list[int], Completion]] = []

    async def episode(number: int) -> int:
        ids = tokens.encode("Who wrote the book?") + tokens.encode(" Ada") * number
        with engine.session(number) as session:
            for turn in range(4):
                completion = await engine.generate(ids, Sampling(6 + number, seed=10 * number + turn), session)
                turns.append((ids, completion))
                whole = len(ids) + len(completion.ids)
                ids = [*ids, *completion.ids, *observation]
                await asyncio.sleep(0)
        return whole

    async def main() -> list[int]:
        return await asyncio.gather(*map(episode, range(5)))

    lengths = asyncio.run(main())
    # Where each caller keeps its slot, every token is computed once, and the very last sampled one never.
    once = sum(length - 1 for length in lengths)
    assert computed.since() == once if slots == 8 else computed.since() >= once
    assert sum(len(completion.ids) for _, completion in turns) > 100
    for ids, completion in turns:
        assert_parity(stock, ids, completion, 1.0)


def test_a_later_turn_pays_only_for_its_new_tokens(tiny: Tiny, tokens: Tokens) -> None:
    model = tiny()
    computed = Computed(model)
    engine = PagedEngine(model, tokens, slots=2, context=256)
    prompt = tokens.encode("Who wrote the book that Ada read?")
    new = tokens.encode("\n\n<information>Doc 1</information>")

    async def main() -> None:
        with engine.session(0) as session:
            first = await engine.generate(prompt, Sampling(10, seed=1), session)
            assert computed.since() == len(prompt) + 9
            second = [*prompt, *first.ids, *new]
            await engine.generate(second, Sampling(5), session)
            # The last sampled token had not been computed yet.
            assert computed.since() == 1 + len(new) + 4

    asyncio.run(main())


def test_a_stranger_with_the_same_beginning_leaves_a_caller_its_slot(tiny: Tiny, tokens: Tokens) -> None:
    model = tiny()
    computed = Computed(model)
    engine = PagedEngine(model, tokens, slots=2, context=256)
    prompt = tokens.encode("Who wrote the book that Ada read?")

    async def main() -> None:
        with engine.session(0) as session:
            first = await engine.generate(prompt, Sampling(10, seed=1), session)
            await engine.generate(prompt, Sampling(10, seed=2))
            computed.since()
            await engine.generate([*prompt, *first.ids, *prompt], Sampling(1), session)
            assert computed.since() == 1 + len(prompt)

    asyncio.run(main())


def test_the_same_prompt_again_costs_one_token(tiny: Tiny, tokens: Tokens) -> None:
    model = tiny()
    computed = Computed(model)
    engine = PagedEngine(model, tokens, slots=2, context=256)
    prompt = tokens.encode("Who wrote the book that Ada read?")
    first = asyncio.run(engine.generate(prompt, Sampling(1, seed=1)))
    assert computed.since() == len(prompt)
    again = asyncio.run(engine.generate(prompt, Sampling(1, seed=1)))
    assert computed.since() == 1
    assert again.ids == first.ids
    assert again.logprobs == pytest.approx(first.logprobs, abs=CLOSE)


def test_long_prompts_are_computed_in_several_batches(tiny: Tiny, tokens: Tokens) -> None:
    """Nine prompts of 450 tokens do not fit the bound of one batch."""
    model, stock = tiny(), tiny(attention="sdpa")
    computed = Computed(model)
    engine = PagedEngine(model, tokens, slots=9, context=500, prefill_tokens=1100)
    # Each begins in a way of its own, so that none finds pages of another.
    asked = [tokens.encode(" Who" * (n + 1) + " Ada" * 450 + " wrote the book?") for n in range(9)]

    async def main() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(ids, Sampling(3, seed=n)) for n, ids in enumerate(asked)))

    completions = asyncio.run(main())
    assert sum(computed.tokens) > 9 * 450
    assert 1000 < max(computed.tokens) <= 1100 + 9
    assert_parity(stock, asked[0], completions[0], 1.0)
    assert_parity(stock, asked[8], completions[8], 1.0)


def test_weights_shared_with_a_trainer_are_read_anew_after_publish(tiny: Tiny, tokens: Tokens) -> None:
    model, other = tiny(), tiny(seed=1, attention="eager")
    engine = PagedEngine(model, tokens, slots=2, context=64)
    prompt = tokens.encode("Who wrote the book?")
    asyncio.run(engine.generate(prompt, Sampling(8)))
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)
    engine.publish(None, 1)
    completion = asyncio.run(engine.generate(prompt, Sampling(8)))
    assert_parity(other, prompt, completion, 1.0)
    assert set(completion.versions) == {1}


def test_dropout_is_off_while_generating_and_on_again_afterwards(tiny: Tiny, tokens: Tokens) -> None:
    model, stock = tiny(), tiny(attention="eager")
    layer = model.model.layers[0]
    layer.mlp = torch.nn.Sequential(layer.mlp, torch.nn.Dropout(0.5))
    engine = PagedEngine(model.train(), tokens, slots=2, context=64)
    prompt = tokens.encode("Who wrote the book?")
    assert_parity(stock, prompt, asyncio.run(engine.generate(prompt, Sampling(8))), 1.0)
    assert all(module.training for module in model.modules())
