"""In bf16 on a GPU the engine's logprobs are the trainer's: both compute every hidden state to the last bit alike."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from sleuth.agent.ledger import Ledger
from sleuth.engines.base import Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.model.kernel_patch import disable_split_k, install
from sleuth.model.packing import Row, row
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.train.parity import compare

Tiny = Callable[..., PreTrainedModel]
# The softmax over the vocabulary is summed in another order, in fp32. One bit of one hidden state is a thousand times
# as much.
CLOSE = 1e-5
CONCURRENT = (1, 5, 40, 200)
GROUP = 4  # samples of each prompt
CONTEXT = 160


def on_gpu(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    nn.Module.to(model, "cuda", dtype)
    return model


def talk(tokens: Tokens, number: int) -> list[list[int]]:
    """What is given before each of two turns: prompts are shared by groups, and are of many lengths."""
    words = tokens.encode("Who wrote the book that Ada Lovelace read in Oslo? I need the author. " * 9)
    group = number // GROUP
    return [words[group % 7 :][: 1 + 7 * group % 90], words[: 1 + 5 * number % 30]]


async def held(engine: PagedEngine, given: Sequence[Sequence[int]], number: int) -> Row:
    ledger = Ledger()
    with engine.session(number) as session:
        for turn, part in enumerate(given):
            ledger.given(part)
            sampling = Sampling(3 + number % 9, seed=2 * number + turn)
            ledger.sampled(await engine.generate(ledger.ids, sampling, session))
    return row(ledger.ids, tuple(map(float, ledger.origin)), old=ledger.logprobs)


@pytest.mark.gpu
def test_engine_and_trainer(tiny: Tiny, family: str, tokens: Tokens) -> None:
    disable_split_k()
    policy = Policy(on_gpu(tiny(family), torch.bfloat16), tokens)
    install(policy.model)
    engine = PagedEngine(policy.model, tokens, slots=max(CONCURRENT), context=CONTEXT)

    async def together(count: int) -> list[Row]:
        return await asyncio.gather(*(held(engine, talk(tokens, number), number) for number in range(count)))

    for count in CONCURRENT:
        rows = asyncio.run(together(count))
        assert len(rows) == count
        found = compare(policy, rows, 1.0)
        assert found.tokens >= 2 * count
        assert found.maximum < CLOSE, f"{count} at a time: {found.line()}"
        engine.publish(None, 0)


@pytest.mark.gpu
def test_other_weights_are_far_away(tiny: Tiny, tokens: Tokens) -> None:
    """The comparison can fail: weights that differ by a bit or two of bf16 are found out."""
    disable_split_k()
    sampling, scoring = (on_gpu(tiny(), torch.bfloat16) for _ in range(2))
    install(scoring)
    with torch.no_grad():
        scoring.model.layers[0].mlp.down_proj.weight.mul_(1.01)
    engine = PagedEngine(sampling, tokens, slots=1, context=CONTEXT)
    rows = [asyncio.run(held(engine, talk(tokens, number), number)) for number in range(3)]
    assert compare(Policy(scoring, tokens), rows, 1.0).maximum > 100 * CLOSE


@pytest.mark.gpu
@pytest.mark.parametrize(("width", "out"), [(576, 1536), (1536, 576), (2048, 11008), (11008, 2048)])
def test_row_of_a_product_has_the_same_bits_alone_and_among_thousands(width: int, out: int) -> None:
    disable_split_k()
    dice = torch.Generator("cuda").manual_seed(0)
    states = torch.randn(4096, width, generator=dice, device="cuda").bfloat16()
    weight = torch.randn(out, width, generator=dice, device="cuda").bfloat16()
    many = torch.nn.functional.linear(states, weight)
    for rows in (1, 2, 7, 16, 64, 200, 1000):
        assert torch.equal(torch.nn.functional.linear(states[:rows], weight), many[:rows]), rows
