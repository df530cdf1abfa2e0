"""The engine contract, over every implementation."""

import asyncio
import os
import shlex
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from sleuth.engines.base import Completion, Engine, Finish, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.engines.scripted import ScriptedEngine
from sleuth.engines.servers.engine import ServerEngine
from sleuth.engines.servers.process import start
from sleuth.engines.servers.weights import DiskTransport, WeightTransport
from sleuth.engines.sglang.engine import SglangEngine
from sleuth.engines.vllm.engine import VllmEngine
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
# Narrower heads are none that vLLM computes on a CPU.
WIDE = {"head_dim": 32}


class Home(NamedTuple):
    """A model folder as users have one."""

    folder: Path
    tokens: Tokens

    def ids(self, text: str) -> list[int]:
        return self.tokens.encode(text)


Opener = Callable[[Path, int, int], AbstractAsyncContextManager[Engine]]
PagedOpener = Callable[[Path, int, int], AbstractAsyncContextManager[PagedEngine]]


@asynccontextmanager
async def scripted(folder: Path, slots: int, context: int) -> AsyncIterator[Engine]:
    """Plays the line that the model of the folder would most likely say."""
    model, end = AutoModelForCausalLM.from_pretrained(folder), Tokens.load(folder).eos_id

    def script(ids: Sequence[int]) -> list[int]:
        line: list[int] = []
        while len(line) < 40 and end not in line:
            line.append(int(model(torch.tensor([[*ids, *line]])).logits[0, -1].argmax()))
        return line

    yield ScriptedEngine(script)


@asynccontextmanager
async def paged(
    folder: Path, slots: int, context: int, *, device: str = "cpu", **settings: Any
) -> AsyncIterator[PagedEngine]:
    model = load(folder, torch.device(device), torch.float32)
    engine = PagedEngine(model, Tokens.load(folder), slots=slots, context=context, **settings)
    yield engine
    await engine.close()


class Servers:
    """Servers, one for each kind, model folder and way of weights: to start one takes a minute."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._logs = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._addresses: dict[tuple[type[ServerEngine], Path, type[WeightTransport]], str] = {}

    def address(self, kind: type[ServerEngine], folder: Path, transport: WeightTransport) -> str:
        key = (kind, folder, type(transport))
        if key not in self._addresses:
            server = start(
                kind.dialect,
                COMMANDS[kind](),
                folder,
                self._logs / f"{folder.name}-{len(self._addresses)}.log",
                context=512,
                slots=16,
                dtype="float32",
                options=[*OPTIONS[kind], *transport.options],
                environment={**QUIET, **transport.environment},
            )
            self._addresses[key] = self._stack.enter_context(server).address
        return self._addresses[key]

    def stop(self) -> None:
        self._stack.close()


COMMANDS: dict[type[ServerEngine], Callable[[], list[str]]] = {
    VllmEngine: lambda: [os.environ["SLEUTH_VLLM"], "serve"],
    SglangEngine: lambda: shlex.split(os.environ["SLEUTH_SGLANG"]),
}
# Without a look at how much memory is free, which others take meanwhile.
OPTIONS: dict[type[ServerEngine], tuple[str, ...]] = {
    VllmEngine: ("--enforce-eager", "--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", str(2**30)),
    SglangEngine: ("--disable-cuda-graph", "--mem-fraction-static", "0.1", "--max-total-tokens", "16384"),
}
# Attention by Triton would multiply numbers of 32 bits as TF32, which puts logprobs .05 apart.
QUIET = {"HF_HUB_OFFLINE": "1", "TRITON_INTERPRET": "0", "TRITON_F32_DEFAULT": "ieee"}
SERVERS: list[Servers] = []


@pytest.fixture(scope="module", autouse=True)
def no_server_is_left() -> Iterator[None]:
    yield
    while SERVERS:
        SERVERS.pop().stop()


@asynccontextmanager
async def served(
    folder: Path, slots: int, context: int, *, kind: type[ServerEngine], way: str = "disk"
) -> AsyncIterator[ServerEngine]:
    if not SERVERS:
        SERVERS.append(Servers())
    with tempfile.TemporaryDirectory() as exchange:
        transport = DiskTransport(Path(exchange)) if way == "disk" else kind.transports[way]()
        address = SERVERS[0].address(kind, folder, transport)
        engine = kind([address], Tokens.load(folder), context=context, slots=slots, transport=transport)
        try:
            yield await engine.connect()
        finally:
            await engine.close()


def on_gpu(**settings: Any) -> Any:
    return pytest.param(partial(paged, device="cuda", **settings), id="paged, on a GPU", marks=pytest.mark.gpu)


def named(openers: Mapping[str, Opener]) -> list[Any]:
    return [pytest.param(opener, id=name) for name, opener in openers.items()]


def near(opener: Opener) -> float:
    """How exact logprobs are: a server on a GPU adds up in another order."""
    elsewhere = getattr(opener, "func", opener) is served and torch.cuda.is_available()
    return 1e-3 if elsewhere else 1e-4


def is_sglang(opener: Opener) -> bool:
    return getattr(opener, "keywords", {}).get("kind") is SglangEngine


BY_VLLM = pytest.param(partial(served, kind=VllmEngine), id="vllm", marks=pytest.mark.vllm)
BY_SGLANG = pytest.param(partial(served, kind=SglangEngine), id="sglang", marks=pytest.mark.sglang)
BY_DEVICE = [
    pytest.param(
        partial(served, kind=kind, way="device"), id=f"{name}, through a GPU's memory", marks=[mark, pytest.mark.gpu]
    )
    for name, kind, mark in (
        ("vllm", VllmEngine, pytest.mark.vllm),
        ("sglang", SglangEngine, pytest.mark.sglang),
    )
]
BY_BROADCAST = pytest.param(
    partial(served, kind=SglangEngine, way="collective"),
    id="sglang, by broadcast",
    marks=[pytest.mark.sglang, pytest.mark.broadcast],
)
SAMPLING = [*named({"paged": paged, "paged, in lockstep": partial(paged, lockstep=True)}), on_gpu(), BY_VLLM, BY_SGLANG]
# Interpreted, operation by operation: only what a few tokens show.
BY_KERNELS = pytest.param(partial(paged, backend="triton"), id="paged, by its kernels")

any_engine = pytest.mark.parametrize("opener", [*named({"scripted": scripted}), *SAMPLING])
sampling_engine = pytest.mark.parametrize("opener", SAMPLING)
sampling_engine_and_kernels = pytest.mark.parametrize("opener", [*SAMPLING, BY_KERNELS])
paged_engine = pytest.mark.parametrize("opener", [pytest.param(paged, id="paged"), on_gpu()])


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
    return _saved(tmp_path_factory.mktemp("wild"), tiny(**WIDE), tokens)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> Home:
    """The model of `wild`, whose texts no token ends: they are as long as they are asked to be."""
    model, tokenizer = tiny(**WIDE), deepcopy(tokens.tokenizer)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token = None
    return _saved(tmp_path_factory.mktemp("endless"), model, Tokens(tokenizer))


@pytest.fixture(scope="module")
def stock(wild: Home) -> PreTrainedModel:
    """The model of `wild` as Hugging Face runs it."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(wild.folder, attn_implementation="eager")
    return model


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


@torch.no_grad()
def logits_after(model: PreTrainedModel, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """What a plain forward pass finds at the place of each token that was sampled."""
    logits: torch.Tensor = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return logits


def logprobs_after(
    model: PreTrainedModel, prompt: Sequence[int], ids: Sequence[int], temperature: float
) -> list[float]:
    logprobs = torch.log_softmax(logits_after(model, prompt, ids) / temperature, -1)
    found: list[float] = logprobs[range(len(ids)), list(ids)].tolist()
    return found


@any_engine
def test_as_many_logprobs_and_versions_as_tokens(opener: Opener, home: Home) -> None:
    completion = said(opener, home, home.ids("I "), Sampling(2))
    assert home.tokens.decode(completion.ids) == "think so."
    assert len(completion.logprobs) == len(completion.versions) == 2
    assert completion.logprobs == pytest.approx((0.0, 0.0), abs=near(opener))


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
    with pytest.raises(EngineFailure, match="0 tokens"):
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
            with engine.session(3) as session:
                ids, texts = home.ids("I "), []
                for _ in range(2):
                    completion = await engine.generate(ids, Sampling(1), session)
                    texts.append(home.tokens.decode(completion.ids))
                    ids = [*ids, *completion.ids]
                return texts

    assert asyncio.run(main()) == ["think ", "so."]


@pytest.mark.parametrize("opener", [*named({"scripted": scripted}), *SAMPLING, BY_KERNELS])
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


@sampling_engine_and_kernels
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
    assert completion.ids == (*home.ids("bye"), home.tokens.eos_id)
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
    with pytest.raises(EngineFailure, match=f"{length} tokens"):
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
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_logprob_is_that_of_a_plain_forward_pass(
    opener: Opener, wild: Home, stock: PreTrainedModel, temperature: float
) -> None:
    prompt = wild.ids("Question: Who wrote the book?\n")
    completion = said(opener, wild, prompt, Sampling(20, temperature, seed=5))
    expected = logprobs_after(stock, prompt, completion.ids, temperature)
    assert completion.logprobs == pytest.approx(expected, abs=near(opener))


@sampling_engine_and_kernels
def test_a_row_is_what_it_is_beside_another(opener: Opener, wild: Home, stock: PreTrainedModel) -> None:
    calls = [(wild.ids("Who wrote the book?"), Sampling(3, seed=5)), (wild.ids("Oslo"), Sampling(5, 0.5, seed=6))]
    for (prompt, sampling), completion in zip(calls, together(opener, wild, calls, slots=2), strict=True):
        expected = logprobs_after(stock, prompt, completion.ids, sampling.temperature)
        assert completion.logprobs == pytest.approx(expected, abs=near(opener))


@sampling_engine
def test_the_seed_alone_decides_whatever_else_is_in_the_batch(opener: Opener, wild: Home) -> None:
    asked = (wild.ids("Who wrote the book?"), Sampling(24, seed=11))
    # SGLang draws in another order beside greedy requests.
    first = 1 if is_sglang(opener) else 0
    others = [(wild.ids("Oslo") * (n + 1), Sampling(3 * n + 1, (n + first) / 4, seed=n)) for n in range(9)]
    alone = said(opener, wild, *asked)
    for slots in (2, 10):
        for place in (0, 5, 9):
            calls = [*others[:place], asked, *others[place:]]
            found = together(opener, wild, calls, slots=slots)[place]
            assert found.ids == alone.ids
            assert found.logprobs == pytest.approx(alone.logprobs, abs=near(opener))


@sampling_engine
def test_other_seeds_say_other_things(opener: Opener, wild: Home) -> None:
    calls = [(wild.ids("Who wrote the book?"), Sampling(16, seed=seed)) for seed in range(8)]
    assert len({completion.ids for completion in together(opener, wild, calls)}) == 8


@sampling_engine
def test_temperature_zero_takes_the_best_whatever_the_seed(opener: Opener, wild: Home, stock: PreTrainedModel) -> None:
    prompt = wild.ids("Who wrote the book?")
    calls = [(prompt, Sampling(16, temperature=0.0, seed=seed)) for seed in range(3)]
    first, *others = together(opener, wild, calls)
    logits = logits_after(stock, prompt, first.ids)
    assert list(first.ids) == logits.argmax(-1).tolist()
    assert first.logprobs == pytest.approx(torch.log_softmax(logits, -1).amax(-1).tolist(), abs=near(opener))
    assert {other.ids for other in others} == {first.ids}


@sampling_engine_and_kernels
def test_top_k_of_one_is_greedy_whatever_the_temperature(opener: Opener, wild: Home, stock: PreTrainedModel) -> None:
    prompt = wild.ids("Who wrote the book?")
    calls = [(prompt, Sampling(6, temperature, seed=7, top_k=1)) for temperature in (0.7, 2.0)]
    best, warm = together(opener, wild, calls)
    assert best.ids == warm.ids
    assert list(best.ids) == logits_after(stock, prompt, best.ids).argmax(-1).tolist()
    assert warm.logprobs == pytest.approx(logprobs_after(stock, prompt, warm.ids, 2.0), abs=near(opener))


@sampling_engine
@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.7}])
def test_only_what_is_kept_is_sampled_with_the_logprob_of_the_whole(
    opener: Opener, wild: Home, stock: PreTrainedModel, cut: dict[str, Any]
) -> None:
    prompt, temperature = wild.ids("Who wrote the book?"), 1.5
    calls = [(prompt, Sampling(16, temperature, seed=seed, **cut)) for seed in range(4)]
    if is_sglang(opener) and (len(cut) > 1 or "min_p" in cut):
        with pytest.raises(EngineFailure, match=next(iter(cut))):  # no other answer of it would be right
            together(opener, wild, calls)
        return
    beyond_the_best = 0
    for completion in together(opener, wild, calls):
        shares = torch.softmax(logits_after(stock, prompt, completion.ids).double() / temperature, -1)
        for token, share in zip(completion.ids, shares, strict=True):
            assert token in _kept(share, near(opener), **cut)
            beyond_the_best += token != int(share.argmax())
        expected = logprobs_after(stock, prompt, completion.ids, temperature)
        assert completion.logprobs == pytest.approx(expected, abs=near(opener))
    assert beyond_the_best > 5


def _kept(share: torch.Tensor, apart: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    """The tokens that may be drawn: by count, then by their share of what that leaves, then by the best one's share.

    The engine's logprobs are `apart` from these at most, so that two shares compare as their ratio within twice that.
    """
    order, slack = share.argsort(descending=True).tolist(), 1 - 2 * apart
    least = float(share[order[top_k - 1]]) * slack if top_k else 0.0
    order = [token for token in order if float(share[token]) >= least]
    total, reached, kept = float(share[order].sum()), 0.0, set()
    for token in order:
        if reached * slack < top_p * total and float(share[token]) >= min_p * float(share.max()) * slack:
            kept.add(token)
        reached += float(share[token])
    return kept


@sampling_engine
def test_a_cancelled_call_makes_room_and_the_others_go_on(opener: Opener, wild: Home) -> None:
    asked = (wild.ids("Who wrote the book?"), Sampling(40, seed=3))

    async def main() -> list[Completion]:
        async with opener(wild.folder, 1, 500) as engine:
            started = asyncio.Event()
            endless = Sampling(480, stops=("no such text",))
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


async def changed_on_the_way(
    engine: Engine, prompt: Sequence[int], new: PreTrainedModel, publish: Callable[..., None] | None = None
) -> Completion:
    """Other weights are published when eight tokens have been heard."""
    heard: list[int] = []
    # As a trainer has them, which shows them to servers from there.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights = {name: weight.to(device) for name, weight in new.state_dict().items()}

    def listen(ids: Sequence[int]) -> None:
        heard.extend(ids)
        if len(heard) >= 8 > len(heard) - len(ids):
            (publish or engine.publish)(weights, 1)

    completion = await engine.generate(prompt, Sampling(48, seed=2), None, listen)
    before = completion.versions.count(0)
    assert 8 <= before < 48
    assert completion.versions == (0,) * before + (1,) * (48 - before)
    return completion


@pytest.mark.parametrize("opener", [*SAMPLING, *BY_DEVICE, BY_BROADCAST])
def test_weights_published_on_the_way_make_the_tokens_after_them(
    opener: Opener, endless: Home, stock: PreTrainedModel, tiny: Callable[..., PreTrainedModel]
) -> None:
    prompt, new = endless.ids("Who wrote the book?"), tiny(seed=1, attention="eager", **WIDE)

    async def main() -> Completion:
        async with opener(endless.folder, 2, 64) as engine:
            return await changed_on_the_way(engine, prompt, new)

    completion = asyncio.run(main())
    before = completion.versions.count(0)
    for model, part in ((stock, slice(0, before)), (new, slice(before, 48))):
        expected = logprobs_after(model, prompt, completion.ids, 1.0)
        assert completion.logprobs[part] == pytest.approx(expected[part], abs=near(opener))


@paged_engine
def test_keys_of_older_weights_are_kept_where_that_is_asked_for(
    opener: PagedOpener, endless: Home, tiny: Callable[..., PreTrainedModel]
) -> None:
    prompt, new = endless.ids("Who wrote the book?"), tiny(seed=1, attention="eager", **WIDE)

    async def main() -> tuple[Completion, int]:
        async with opener(endless.folder, 2, 64) as engine:
            publish = partial(engine.publish, keep_cache=True)
            return await changed_on_the_way(engine, prompt, new, publish), engine.stats.prefilled

    completion, prefilled = asyncio.run(main())
    assert prefilled == len(prompt)
    # The first token after the change is of the new weights, but what it looks back on is not.
    before = completion.versions.count(0)
    expected = logprobs_after(new, prompt, completion.ids, 1.0)
    assert completion.logprobs[before:] != pytest.approx(expected[before:], abs=1e-2)


@paged_engine
@pytest.mark.parametrize("length", [5, 16, 40])
def test_a_group_computes_its_prompt_once(opener: PagedOpener, wild: Home, length: int) -> None:
    prompt = (wild.ids("Question: Who wrote the book that Ada Lovelace read in Oslo?\n") * 4)[:length]

    async def main() -> tuple[list[Completion], int, int]:
        async with opener(wild.folder, 8, 64) as engine:
            calls = [engine.generate(prompt, Sampling(6, seed=seed)) for seed in range(8)]
            return await asyncio.gather(*calls), engine.stats.prefilled, engine.stats.reused

    completions, prefilled, reused = asyncio.run(main())
    alone = together(paged, wild, [(prompt, Sampling(6, seed=seed)) for seed in range(8)], slots=1)
    assert [completion.ids for completion in completions] == [completion.ids for completion in alone]
    # Whole pages are shared; what is left of the prompt, a token at least, each computes for itself.
    shared = (length - 1) // PAGE_SIZE * PAGE_SIZE
    assert (prefilled, reused) == (length + 7 * (length - shared), 7 * shared)


@paged_engine
def test_the_next_turn_pays_only_for_its_new_tokens(opener: PagedOpener, wild: Home) -> None:
    prompt, observation = wild.ids("Who wrote the book that Ada read?") * 3, wild.ids("\n\n<information>Doc 1")

    async def main() -> list[tuple[int, int]]:
        async with opener(wild.folder, 2, 256) as engine:
            paid: list[tuple[int, int]] = []
            with engine.session(0) as session:
                ids = prompt
                for turn in range(3):
                    before = engine.stats.prefilled
                    completion = await engine.generate(ids, Sampling(7, seed=turn), session)
                    paid.append((engine.stats.prefilled - before, len(ids)))
                    ids = [*ids, *completion.ids, *observation]
            return paid

    first, *later = asyncio.run(main())
    assert first == (len(prompt), len(prompt))
    # The last sampled token of a turn is computed with the next.
    assert [paid for paid, _ in later] == [1 + len(observation)] * 2


@sampling_engine
def test_lower_orders_are_served_first(opener: Opener, home: Home) -> None:
    finished: list[int] = []

    async def call(engine: Engine, order: int) -> None:
        with engine.session(order) as session:
            await engine.generate(home.ids("tick "), Sampling(8), session)
            finished.append(order)

    async def main() -> None:
        async with opener(home.folder, 1, 64) as engine:
            await asyncio.gather(*(call(engine, order) for order in (5, 1, 4, 0, 3, 2)))

    asyncio.run(main())
    assert finished == [0, 1, 2, 3, 4, 5]
