"""Engine load test: ten thousand requests, a tenth of the needed pages, and callers that cancel."""

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.model.attention import AttentionShape
from sleuth.model.tokens import Tokens

REQUESTS = 10_000
SLOTS, CONTEXT = 256, 96
NEED = SLOTS * CONTEXT // PAGE_SIZE
LIMIT = 300.0  # seconds: only a deadlock takes as long
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

Tiny = Callable[..., PreTrainedModel]
Call = tuple[list[int], Sampling]


def share_of(pages: int, model: PreTrainedModel) -> float:
    """The share of the device's memory that these pages take."""
    parameter = next(model.parameters())
    if parameter.is_cuda:
        _, total = torch.cuda.mem_get_info(parameter.device)
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Half a page more, so that rounding takes none.
    return (pages + 0.5) * PAGE_SIZE * AttentionShape.of(model.config, parameter.dtype).bytes_per_token / total


def calls(dice: random.Random, vocabulary: int) -> list[Call]:
    """Prompts of 1 to 90 tokens: a third of them new, a third a known beginning with an end, a third seen before."""
    known: list[list[int]] = []
    asked: list[Call] = []
    for seed in range(REQUESTS):
        fresh = [dice.randrange(1, vocabulary) for _ in range(int(1 + 89 * dice.random() ** 6))]
        before = dice.choice(known) if known else []
        prompt = dice.choice([fresh, fresh, [*before, *fresh][:90], before or fresh])
        known = [*known[-40:], prompt]
        # Those that say much come in a crowd: short as they are at first, more of them are let in than can go on.
        most = 70 if seed % 1000 < 150 else dice.choice((1, 2, 4, 8))
        asked.append((prompt, Sampling(most, seed=seed, top_k=dice.choice((0, 0, 5)))))
    return asked


@dataclass(slots=True)
class Crowd:
    """Everybody asks at once. Whenever somebody is served, another may be sent away, or weights are published."""

    engine: PagedEngine
    dice: random.Random
    tasks: list["asyncio.Task[Completion]"] = field(default_factory=list)
    heard: dict[int, list[int]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    version: int = 0

    async def ask(self, asked: Sequence[Call]) -> list[Completion | BaseException]:
        self.tasks = [asyncio.create_task(self._call(number, call)) for number, call in enumerate(asked)]
        return await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _call(self, number: int, call: Call) -> Completion:
        listen = self.heard.setdefault(number, []).extend if number % 5 == 0 else None
        with self.engine.session(number // 8) as session:
            completion = await self.engine.generate(*call, session if number % 3 else None, listen)
        self._served()
        return completion

    def _served(self) -> None:
        if self.dice.random() < 0.1:
            # Half of them on their way, where they are known, and the others from the queue.
            begun = [number for number, heard in self.heard.items() if heard and not self.tasks[number].done()]
            number = self.dice.choice(begun) if begun and self.dice.random() < 0.5 else self.dice.randrange(REQUESTS)
            if self.tasks[number].cancel():
                self.left.add(number)
        if self.dice.random() < 0.001:
            self.version += 1
            self.engine.publish(None, self.version)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Products this small take longer where threads share them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


async def emptied(engine: PagedEngine) -> None:
    while engine.pages_in_use:  # noqa: ASYNC110  nobody is told when the last page is given back
        await asyncio.sleep(0.01)


@pytest.mark.e2e
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("device", DEVICES)
def test_ten_thousand_requests_on_a_tenth_of_the_pages(tiny: Tiny, tokens: Tokens, device: str) -> None:
    model = tiny()
    torch.nn.Module.to(model, device)
    engine = PagedEngine(
        model, tokens, slots=SLOTS, context=CONTEXT, memory=share_of(NEED // 10, model), prefill_tokens=256
    )
    asked = calls(random.Random(0), model.config.vocab_size)
    crowd = Crowd(engine, random.Random(1))

    async def main() -> list[Completion | BaseException]:
        ended = await crowd.ask(asked)
        await emptied(engine)
        return ended

    ended = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert all(task.done() for task in crowd.tasks)
    assert {number for number, each in enumerate(ended) if isinstance(each, asyncio.CancelledError)} == crowd.left
    served = {number: each for number, each in enumerate(ended) if isinstance(each, Completion)}
    assert len(served) + len(crowd.left) == REQUESTS
    assert len(crowd.left) > REQUESTS / 50
    assert crowd.version > 2
    assert engine.pages_in_use == 0
    assert engine.stats.preempted > 50
    assert engine.stats.reused > 10_000
    for number, completion in served.items():
        _, sampling = asked[number]
        assert list(completion.versions) == sorted(completion.versions)
        if completion.finish is Finish.LENGTH:
            assert len(completion.ids) == sampling.max_tokens
        assert tuple(crowd.heard.get(number, completion.ids)) == completion.ids
    unhurried = PagedEngine(model, tokens, slots=16, context=CONTEXT)
    sample = random.Random(2).sample(sorted(served), 100)

    async def again() -> list[Completion]:
        return await asyncio.gather(*(unhurried.generate(*asked[number]) for number in sample))

    pairs = [(served[number], each) for number, each in zip(sample, asyncio.run(again()), strict=True)]
    same = [(one, other) for one, other in pairs if one.ids == other.ids]
    # Sums round by who else is in the batch, and a draw may fall within a rounding of the border between two tokens.
    assert len(same) >= len(pairs) - 2
    for one, other in same:
        assert one.finish is other.finish
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
