"""What every engine promises, over every implementation."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from sleuth.engines.base import Completion, Engine, Finish, Sampling
from sleuth.engines.paged.engine import Paged
from sleuth.engines.scripted import Scripted
from sleuth.errors import EngineFailure
from sleuth.model.load import load
from sleuth.model.tokens import Tokens

END = "<|end|>"
LINES = {
    "plain": ("I ", "think ", "so."),
    "split": ("Ask:", "<search>oslo", "</", "sea", "rch>", "after"),
    "straddling": ("Tell:", "<answer>rome</an", "swer", ">\n\n", "more", "and more"),
    "one token": ("Name:", "</search>", "beyond"),
    "answer first": ("Both:", "</ans", "wer></sea", "rch>."),
    "both at once": ("Same:", "<", "/answer></search>", "!"),
    "ending": ("Say:", "bye", END),
    "endless": ("tick ", "tock ", "tack ", "tick "),
}
STOPS = ("</search>", "</answer>")


class Home(NamedTuple):
    """A model folder as users have one."""

    folder: Path
    tokens: Tokens

    def ids(self, text: str) -> list[int]:
        return self.tokens.encode(text)


Opener = Callable[[Path, int, int], AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def scripted(folder: Path, slots: int, context: int) -> AsyncIterator[Engine]:
    """Plays the line that the model of the folder would most likely say."""
    model, end = AutoModelForCausalLM.from_pretrained(folder), Tokens.load(folder).end

    def script(ids: Sequence[int]) -> list[int]:
        line: list[int] = []
        while len(line) < 40 and end not in line:
            line.append(int(model(torch.tensor([[*ids, *line]])).logits[0, -1].argmax()))
        return line

    yield Scripted(script)


@asynccontextmanager
async def paged(folder: Path, slots: int, context: int, *, lockstep: bool = False) -> AsyncIterator[Engine]:
    model = load(folder, torch.device("cpu"), torch.float32)
    engine = Paged(model, Tokens.load(folder), slots=slots, context=context, lockstep=lockstep)
    yield engine
    await engine.close()


SAMPLING: dict[str, Opener] = {"paged": paged, "paged, in lockstep": partial(paged, lockstep=True)}
IMPLEMENTATIONS: dict[str, Opener] = {"scripted": scripted, **SAMPLING}

any_engine = pytest.mark.parametrize("opener", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
sampling_engine = pytest.mark.parametrize("opener", SAMPLING.values(), ids=SAMPLING)


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory,
    spelled: Callable[[Sequence[str]], Tokens],
    reciter: Callable[[Tokens, Sequence[Sequence[str]]], PreTrainedModel],
) -> Home:
    """A model that knows LINES by heart."""
    tokens = spelled(list(dict.fromkeys([END, *(piece for line in LINES.values() for piece in line)])))
    return _saved(tmp_path_factory.mktemp("reciter"), reciter(tokens, list(LINES.values())), tokens)


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> Home:
    """A model with random weights, which says anything."""
    return _saved(tmp_path_factory.mktemp("wild"), tiny(), tokens)


def _saved(folder: Path, model: PreTrainedModel, tokens: Tokens) -> Home:
    model.save_pretrained(folder)
    tokens.tokenizer.save_pretrained(folder)
    return Home(folder, tokens)


def said(
    opener: Opener, home: Home, prompt: Sequence[int], sampling: Sampling, *, slots: int = 4, context: int = 64
) -> Completion:
    """What a new engine says to one prompt."""
    (completion,) = together(opener, home, [(prompt, sampling)], slots=slots, context=context)
    return completion


def together(
    opener: Opener, home: Home, calls: Sequence[tuple[Sequence[int], Sampling]], *, slots: int = 4, context: int = 64
) -> list[Completion]:
    """What a new engine says to prompts that come at the same time."""

    async def main() -> list[Completion]:
        async with opener(home.folder, slots, context) as engine:
            return await asyncio.gather(*(engine.generate(ids, sampling) for ids, sampling in calls))

    return asyncio.run(main())


@any_engine
def test_as_many_logprobs_and_versions_as_tokens(opener: Opener, home: Home) -> None:
    completion = said(opener, home, home.ids("I "), Sampling(2))
    assert home.tokens.decode(completion.ids) == "think so."
    assert len(completion.logprobs) == len(completion.versions) == 2
    assert completion.logprobs == pytest.approx((0.0, 0.0), abs=1e-4)


@any_engine
@pytest.mark.parametrize("most", [1, 2, 5, 17])
def test_never_more_than_max_tokens(opener: Opener, home: Home, most: int) -> None:
    completion = said(opener, home, home.ids("tick "), Sampling(most))
    assert home.tokens.decode(completion.ids) == "".join(("tock ", "tack ", "tick ")[n % 3] for n in range(most))
    assert (completion.finish, completion.stop) == (Finish.LENGTH, None)


@any_engine
def test_calls_at_the_same_time_do_not_mix(opener: Opener, home: Home) -> None:
    starts = ["tick ", "tack ", "tock "] * 4
    calls = [(home.ids(start), Sampling(3)) for start in starts]
    turn = {"tick ": "tock tack tick ", "tock ": "tack tick tock ", "tack ": "tick tock tack "}
    completions = together(opener, home, calls, slots=2)
    assert [home.tokens.decode(completion.ids) for completion in completions] == [turn[start] for start in starts]


@any_engine
def test_an_empty_prompt_is_a_failure(opener: Opener, home: Home) -> None:
    with pytest.raises(EngineFailure, match="prompt of 0 tokens"):
        said(opener, home, [], Sampling(3))


@any_engine
def test_the_listener_hears_every_token_in_order(opener: Opener, home: Home) -> None:
    heard: list[int] = []

    async def main() -> Completion:
        async with opener(home.folder, 4, 64) as engine:
            return await engine.generate(home.ids("tick "), Sampling(11), None, heard.extend)

    completion = asyncio.run(main())
    assert len(completion.ids) == 11
    assert tuple(heard) == completion.ids


@any_engine
def test_a_seat_serves_turn_after_turn(opener: Opener, home: Home) -> None:
    async def main() -> list[str]:
        async with opener(home.folder, 1, 64) as engine:
            with engine.seat(3) as seat:
                ids, texts = home.ids("I "), []
                for _ in range(2):
                    completion = await engine.generate(ids, Sampling(1), seat)
                    texts.append(home.tokens.decode(completion.ids))
                    ids = [*ids, *completion.ids]
                return texts

    assert asyncio.run(main()) == ["think ", "so."]


@any_engine
def test_tokens_carry_the_version_that_was_published_before_them(opener: Opener, home: Home) -> None:
    async def main() -> list[tuple[int, ...]]:
        async with opener(home.folder, 4, 64) as engine:
            versions = [(await engine.generate(home.ids("I "), Sampling(2))).versions]
            engine.publish(None, 7)
            versions.append((await engine.generate(home.ids("I "), Sampling(2))).versions)
            return versions

    assert asyncio.run(main()) == [(0, 0), (7, 7)]


@any_engine
def test_an_engine_can_be_closed_twice_or_unused(opener: Opener, home: Home) -> None:
    async def main() -> None:
        async with opener(home.folder, 4, 64) as engine:
            await engine.close()
            await engine.close()

    asyncio.run(main())


@sampling_engine
@pytest.mark.parametrize(
    ("prompt", "text", "stop"),
    [
        ("Ask:", "<search>oslo</search>", "</search>"),
        ("Tell:", "<answer>rome</answer>\n\n", "</answer>"),
        ("Name:", "</search>", "</search>"),
        ("Both:", "</answer></sea", "</answer>"),
        ("Same:", "</answer></search>", "</answer>"),
    ],
)
def test_generation_ends_with_the_token_that_completes_the_first_stop(
    opener: Opener, home: Home, prompt: str, text: str, stop: str
) -> None:
    completion = said(opener, home, home.ids(prompt), Sampling(9, stops=STOPS))
    assert home.tokens.decode(completion.ids) == text
    assert (completion.finish, completion.stop) == (Finish.STOP, stop)


@sampling_engine
def test_a_stop_in_the_prompt_or_begun_there_stops_nothing(opener: Opener, home: Home) -> None:
    prompt = home.ids("Name:</search>Ask:<search>oslo</")
    completion = said(opener, home, prompt, Sampling(3, stops=STOPS))
    assert home.tokens.decode(completion.ids[:2]) == "search>"
    assert completion.finish is Finish.LENGTH


@sampling_engine
def test_without_stops_nothing_stops(opener: Opener, home: Home) -> None:
    completion = said(opener, home, home.ids("Ask:"), Sampling(5))
    assert home.tokens.decode(completion.ids) == "<search>oslo</search>after"


@sampling_engine
def test_the_end_token_ends_and_is_kept(opener: Opener, home: Home) -> None:
    completion = said(opener, home, home.ids("Say:"), Sampling(9))
    assert completion.ids == (*home.ids("bye"), home.tokens.end)
    assert completion.finish is Finish.END


@sampling_engine
@pytest.mark.parametrize("given", [1, 5, 15])
def test_generation_ends_where_the_context_does(opener: Opener, home: Home, given: int) -> None:
    prompt = home.ids("tick tock tack " * 5)[:given]
    completion = said(opener, home, prompt, Sampling(100), context=16)
    assert len(completion.ids) == 16 - given
    assert completion.finish is Finish.CONTEXT


@sampling_engine
@pytest.mark.parametrize("length", [16, 17, 400])
def test_a_prompt_without_room_after_it_is_a_failure(opener: Opener, home: Home, length: int) -> None:
    prompt = home.ids("tick ") * length
    with pytest.raises(EngineFailure, match=f"prompt of {length} tokens"):
        said(opener, home, prompt, Sampling(3), context=16)


@sampling_engine
@pytest.mark.parametrize("token", [-1, 10_000])
def test_a_prompt_the_model_cannot_read_fails_alone(opener: Opener, home: Home, token: int) -> None:
    async def main() -> list[Completion | BaseException]:
        async with opener(home.folder, 4, 64) as engine:
            prompts = [home.ids("I "), [token], home.ids("I ")]
            calls = [engine.generate(prompt, Sampling(2)) for prompt in prompts]
            return await asyncio.gather(*calls, return_exceptions=True)

    first, bad, last = asyncio.run(main())
    assert isinstance(first, Completion)
    assert isinstance(bad, EngineFailure)
    assert first == last


@sampling_engine
def test_a_logprob_is_that_of_a_plain_forward_pass(opener: Opener, wild: Home) -> None:
    prompt = wild.ids("Question: Who wrote the book?\n")
    stock = AutoModelForCausalLM.from_pretrained(wild.folder, attn_implementation="eager")
    for temperature in (0.5, 1.0, 2.0):
        completion = said(opener, wild, prompt, Sampling(20, temperature, seed=5))
        logits = stock(torch.tensor([[*prompt, *completion.ids]])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits / temperature, -1)[range(len(completion.ids)), completion.ids]
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@sampling_engine
def test_the_seed_alone_decides_whatever_else_is_in_the_batch(opener: Opener, wild: Home) -> None:
    asked = (wild.ids("Who wrote the book?"), Sampling(24, seed=11))
    others = [(wild.ids("Oslo") * (n + 1), Sampling(3 * n + 1, temperature=n / 3, seed=n)) for n in range(9)]
    alone = said(opener, wild, *asked)
    for slots in (2, 10):
        for place in (0, 5, 9):
            calls = [*others[:place], asked, *others[place:]]
            found = together(opener, wild, calls, slots=slots)[place]
            assert found.ids == alone.ids
            assert found.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


@sampling_engine
def test_other_seeds_say_other_things(opener: Opener, wild: Home) -> None:
    calls = [(wild.ids("Who wrote the book?"), Sampling(16, seed=seed)) for seed in range(8)]
    assert len({completion.ids for completion in together(opener, wild, calls)}) == 8


@sampling_engine
def test_temperature_zero_takes_the_best_whatever_the_seed(opener: Opener, wild: Home) -> None:
    prompt = wild.ids("Who wrote the book?")
    calls = [(prompt, Sampling(16, temperature=0.0, seed=seed)) for seed in range(3)]
    first, *others = together(opener, wild, calls)
    stock = AutoModelForCausalLM.from_pretrained(wild.folder, attn_implementation="eager")
    logits = stock(torch.tensor([[*prompt, *first.ids]])).logits[0, len(prompt) - 1 : -1]
    assert list(first.ids) == logits.argmax(-1).tolist()
    assert first.logprobs == pytest.approx(torch.log_softmax(logits, -1).amax(-1).tolist(), abs=1e-4)
    assert {other.ids for other in others} == {first.ids}


@sampling_engine
def test_a_cancelled_call_makes_room_and_the_others_go_on(opener: Opener, wild: Home) -> None:
    asked = (wild.ids("Who wrote the book?"), Sampling(40, seed=3))

    async def main() -> list[Completion]:
        async with opener(wild.folder, 1, 2000) as engine:
            started = asyncio.Event()
            endless = Sampling(1900, stops=("no such text",))
            doomed = asyncio.create_task(
                engine.generate(wild.ids("Oslo"), endless, None, lambda _ids: started.set()),
            )
            unborn = asyncio.create_task(engine.generate(wild.ids("Oslo"), endless))
            patient = [asyncio.create_task(engine.generate(*asked)) for _ in range(2)]
            await started.wait()
            unborn.cancel()
            doomed.cancel()
            return await asyncio.wait_for(asyncio.gather(*patient), 20)

    expected = said(opener, wild, *asked)
    assert [completion.ids for completion in asyncio.run(main())] == [expected.ids] * 2


@sampling_engine
def test_weights_published_on_the_way_make_the_tokens_after_them(
    opener: Opener, wild: Home, tiny: Callable[..., PreTrainedModel]
) -> None:
    prompt, new = wild.ids("Who wrote the book?"), tiny(seed=1, attention="eager")

    async def main() -> Completion:
        async with opener(wild.folder, 2, 64) as engine:
            heard: list[int] = []

            def listen(ids: Sequence[int]) -> None:
                heard.extend(ids)
                if len(heard) >= 8:
                    engine.publish(new.state_dict(), 1)

            return await engine.generate(prompt, Sampling(24, seed=2), None, listen)

    completion = asyncio.run(main())
    before = completion.versions.count(0)
    assert before >= 8
    assert completion.versions == (0,) * before + (1,) * (24 - before)
    assert before < 24
    old = AutoModelForCausalLM.from_pretrained(wild.folder, attn_implementation="eager")
    for model, part in ((old, slice(0, before)), (new, slice(before, 24))):
        logits = model(torch.tensor([[*prompt, *completion.ids]])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1)[range(24), completion.ids]
        assert completion.logprobs[part] == pytest.approx(expected[part].tolist(), abs=1e-4)


@sampling_engine
def test_lower_orders_are_served_first(opener: Opener, home: Home) -> None:
    finished: list[int] = []

    async def call(engine: Engine, order: int) -> None:
        with engine.seat(order) as seat:
            await engine.generate(home.ids("tick "), Sampling(8), seat)
            finished.append(order)

    async def main() -> None:
        async with opener(home.folder, 1, 64) as engine:
            await asyncio.gather(*(call(engine, order) for order in (5, 1, 4, 0, 3, 2)))

    asyncio.run(main())
    assert finished == [0, 1, 2, 3, 4, 5]
