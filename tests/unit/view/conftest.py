"""A run, evaluations, and a viewer that shows them."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from sleuth.evaluate.comparison import compare_folders
from sleuth.evaluate.folder import EvaluationFolder, row_with_passages
from sleuth.evaluate.report import load_results, write_report
from sleuth.evaluate.results import COUNTS, MEASURES
from sleuth.records import (
    Answer,
    Hit,
    Malformed,
    Outcome,
    Passage,
    Question,
    Score,
    Segment,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)
from sleuth.runs.run import Run
from sleuth.runs.trajectory import trajectory_row
from sleuth.view.api import Api, ComparisonCache
from sleuth.view.library import Library, make_roots
from sleuth.view.server import application
from sleuth.view.trajectory import TokenizerCache

ALPHABET = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
HOSTILE = '<script>alert("x")</script>'
Asking = Callable[..., httpx.Response]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """One token per byte."""
    made = Tokenizer(models.BPE(vocab=ALPHABET, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


@pytest.fixture
def episode(tokenizer: Tokenizer) -> Callable[..., Trajectory]:
    """Build a trajectory with one search and an answer."""

    def make(number: int = 0, step: int = 1, sample: int = 0, answer: str = "Ada", broken: bool = False) -> Trajectory:
        question = Question(f"q{number}", f"Who wrote book {number}?", ("Ada",), "library", supporting_ids=("p1",))
        hits = (Hit(Passage("p1", '"Book"\nAda wrote it.'), 2.5), Hit(Passage("p2", '"Tür"\nA door.'), 1.0))
        search, reply = "<think>hm</think><search>book</search>", f"<answer>{answer}</answer>"
        parts = [(f"{question.question}\n", False), (search, True), ("[Tür: Ada wrote it.]", False), (reply, True)]
        ids = [(token, sampled) for text, sampled in parts for token in tokenizer.encode(text).ids]
        sampled = [mine for _, mine in ids]
        lengths = [len(tokenizer.encode(text).ids) for text, _ in parts]
        turns = (
            Turn(search, ToolCall.search("book"), Outcome.FOUND, lengths[1], hits),
            Turn(reply, Answer(answer), Outcome.ANSWERED, lengths[3])
            if not broken
            else Turn(reply, Malformed("no action"), Outcome.CORRECTED, lengths[3]),
        )
        stop = StopReason.OUT_OF_TURNS if broken else StopReason.ANSWERED
        count = sum(sampled)
        return Trajectory(
            question=question,
            group=number,
            sample=sample,
            step=step,
            segments=(
                Segment(
                    tuple(token for token, _ in ids),
                    tuple(sampled),
                    tuple(-0.01 * place for place in range(count)),
                    (step - 1,) * count,
                ),
            ),
            turns=turns,
            stop=stop,
        )

    return make


@pytest.fixture
def forked(tokenizer: Tokenizer) -> Callable[..., Trajectory]:
    """Build an outside agent's attempt: two calls, a call of the helper model, and a fork of the first for a writer."""

    def segment(parts: Sequence[tuple[str, bool]], **fields: Any) -> Segment:
        ids = [(token, sampled) for text, sampled in parts for token in tokenizer.encode(text).ids]
        count = sum(sampled for _, sampled in ids)
        tokens, sampled = zip(*ids, strict=True)
        return Segment(tokens, sampled, tuple(-0.5 for _ in range(count)), (7,) * count, **fields)

    def make(sample: int = 0, step: int = 4) -> Trajectory:
        question = Question("q5", "Who wrote it?", ("Ada",), "library")
        call, seen = '<tool_call>{"name": "find", "arguments": {"book": "X"}}</tool_call>', "[X: by Ada]"
        opening = [("Who?\n", False), (call, True), (seen, False)]
        shared = [(text, False) for text, _ in opening]
        turns = (
            Turn(call, ToolCall("find", {"book": "X"}), Outcome.RETURNED, len(call)),
            Turn("Ada?", Answer("Ada?"), Outcome.ANSWERED, 4),
            Turn("Looks right.", Answer("Looks right."), Outcome.ANSWERED, 0, segment=None),
            Turn("hm</think>Ada", Answer("Ada"), Outcome.ANSWERED, 13, segment=1),
            Turn("Grade: 1", Answer("Grade: 1"), Outcome.ANSWERED, 0, segment=None),
        )
        segments = (
            segment([*opening, ("Ada?", True)], calls=((0, len(call)), (1, 4))),
            segment(
                [*shared, ("Write.", False), ("hm</think>Ada", True)],
                role="writer",
                parent=0,
                shared=sum(len(text) for text, _ in opening),
                calls=((3, 13),),
            ),
        )
        return Trajectory(question, 0, sample, step, segments, turns, StopReason.ANSWERED, reward=Score(0.5))

    return make


def scored(trajectory: Trajectory) -> Score:
    right = float(trajectory.answer == "Ada")
    return Score(right, {"em": right, "f1": right, "format": 1.0, "searches": 1.0})


@pytest.fixture
def run(tmp_path: Path, episode: Callable[..., Trajectory], tokenizer: Tokenizer) -> Run:
    """Three steps of two questions with two samples each; the second sample is wrong, and in step 3 malformed."""
    made = Run.create(tmp_path / "runs" / "first", {"config": {"train": {"steps": 3}, "model": {"policy": "tiny"}}})
    made.append_metrics(0, {"evaluate/em": 0.25})
    for step in (1, 2, 3):
        every = [
            episode(number, step, sample, "Bob" if sample else "Ada", broken=bool(sample) and step == 3)
            for number in (step, 9)
            for sample in (0, 1)
        ]
        made.write_trajectories(step, (trajectory_row(each, scored(each)) for each in every))
        made.append_metrics(step, {"reward/mean": 0.5, "time/step": 2.0})
    made.append_event(2, {"guard": "kl", "action": "warn", "value": 0.5, "limit": 0.1, "sentence": "KL is high"})
    made.checkpoint(2).mkdir()
    tokenizer.save(str(made.checkpoint(2) / "tokenizer.json"))
    return made


@pytest.fixture
def evaluate(tmp_path: Path, episode: Callable[..., Trajectory]) -> Callable[..., EvaluationFolder]:
    """Build a finished evaluation with these answers."""

    def make(name: str, answers: Sequence[str]) -> EvaluationFolder:
        every = [episode(number, 0, answer=answer) for number, answer in enumerate(answers)]
        manifest: dict[str, Any] = {"title": name, "name": name, "stamp": {}, "sample": None, "notes": []}
        folder = EvaluationFolder.create_or_resume(
            tmp_path / "evaluations" / name, manifest, [each.question for each in every]
        )
        with folder.appending() as append:
            for each in reversed(every):
                append(row_with_passages(each, scored(each)))
        write_report(folder, load_results(folder))
        return folder

    return make


@pytest.fixture
def api(tmp_path: Path) -> Callable[..., Api]:
    """Build the API of a viewer of these folders."""

    def make(*names: str, cache: Path | None = None) -> Api:
        comparisons = ComparisonCache(compare_folders, MEASURES, sorted(COUNTS))
        return Api(Library(make_roots([tmp_path / name for name in names])), comparisons, TokenizerCache(), cache)

    return make


@pytest.fixture
def ask(api: Callable[..., Api]) -> Callable[..., Asking]:
    """Build a function that sends requests to a viewer of these folders."""

    def make(*names: str, cache: Path | None = None, host: str = "127.0.0.1:8090") -> Asking:
        app = application(api(*names, cache=cache))

        def get(path: str, headers: dict[str, str] | None = None, **parameters: Any) -> httpx.Response:
            async def send() -> httpx.Response:
                async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}") as client:
                    return await client.get(path, headers=headers, params=parameters or None)

            return asyncio.run(send())

        return get

    return make
