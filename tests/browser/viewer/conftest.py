"""A library of runs and evaluations, written by the house's own writers, and the viewer that shows it."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sleuth.evaluate.folder import EvaluationFolder, hash_questions, row_with_passages
from sleuth.evaluate.report import load_results, write_report
from sleuth.model.tokens import Tokens
from sleuth.records import (
    Action,
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
from sleuth.reward.rubric import measure
from sleuth.runs.run import Run
from sleuth.runs.trajectory import trajectory_row
from sleuth.sft.quickstart_policy import build_tokenizer

WORKSHOPS = ("Juniper Workshop", "Corvid Press", "Saltmarsh Foundry", "Larkspur Mills", "Ember Quay", "Thistle Works")
CITIES = ("Hestor Crossing", "Dunvar Hill", "Port Ailsa", "Marrow Bay", "Oldbridge", "Kestrel Ford")
NATIONS = ("Esteria Principality", "Republic of Vallen", "Norrland Union", "Tavish Isles", "Kingdom of Orre", "Samar")
HOSTILE = "<img src=x onerror=\"window.hacked = 1\"><script>alert('hacked')</script><b>bold</b>"
SAMPLES, STEPS = 4, 24


def passage(place: int, hop: int) -> Passage:
    """What the corpus says of a workshop, or of its city."""
    workshop, city, nation = WORKSHOPS[place], CITIES[place], NATIONS[place]
    if hop == 0:
        return Passage(
            f"w{place}", f'"{workshop}"\n{workshop} is based in the city of {city}. It opened in 18{place}6.'
        )
    return Passage(f"c{place}", f'"{city}"\n{city} lies within the borders of {nation}. It has a mayor.')


QUESTIONS = tuple(
    Question(
        f"q{place}",
        f"In which nation is the seat of {WORKSHOPS[place]}?",
        (NATIONS[place],),
        "world" if place % 2 else "atlas",
        supporting_ids=(f"w{place}", f"c{place}"),
    )
    for place in range(len(WORKSHOPS))
)
TEXTS = [
    "<think> I need the city of . Its nation is not known yet. </think> <search> </search> <answer> </answer>",
    "\n\n<information>Doc 1(Title: )</information>\n\nQuestion: ?\n",
    *(question.question for question in QUESTIONS),
    *(passage(place, hop).contents for place in range(len(WORKSHOPS)) for hop in (0, 1)),
    *NATIONS,
]


@dataclass
class Scribe:
    """Writes an episode as an agent would: what is given, what is sampled, turn by turn."""

    tokens: Tokens
    dice: Random
    version: int
    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def given(self, text: str) -> None:
        ids = self.tokens.encode(text)
        self.ids += ids
        self.sampled += [False] * len(ids)

    def said(self, text: str, action: Action, outcome: Outcome, hits: Sequence[Hit] = ()) -> None:
        ids = self.tokens.encode(text)
        self.ids += ids
        self.sampled += [True] * len(ids)
        self.turns.append(Turn(text, action, outcome, len(ids), tuple(hits), (len(hits),)))

    def searched(self, thought: str, query: str, hits: Sequence[Hit]) -> None:
        self.said(f"<think> {thought} </think> <search> {query} </search>", ToolCall.search(query), Outcome.FOUND, hits)
        shown = " ".join(f"Doc {n}(Title: {hit.passage.title}) {hit.passage.text}" for n, hit in enumerate(hits, 1))
        self.given(f"\n\n<information>{shown}</information>\n\n")

    def trajectory(self, question: Question, group: int, sample: int, step: int, stop: StopReason) -> Trajectory:
        count = sum(self.sampled)
        logprobs = tuple(round(-self.dice.expovariate(2.0), 4) for _ in range(count))
        versions = tuple(self.version + (place > count // 2) for place in range(count))
        flags = tuple(self.sampled)
        return Trajectory(
            question,
            group,
            sample,
            step,
            (Segment(tuple(self.ids), flags, logprobs, versions),),
            tuple(self.turns),
            stop,
        )


def episode(tokens: Tokens, place: int, skill: float, at: tuple[int, int, int]) -> Trajectory:
    """An episode of a question by its place: right as often as the skill says, else one of several faults."""
    step, group, sample = at
    dice = Random(f"{place} {at}")
    scribe = Scribe(tokens, dice, max(0, step - 1))
    question = QUESTIONS[place]
    scribe.given(f"Question: {question.question}\n")
    right, stray = dice.random() < skill, passage((place + 1) % len(WORKSHOPS), 0)
    if right or dice.random() < 0.6:
        hits = [Hit(passage(place, 0), 12.25), Hit(stray, 4.5)]
        scribe.searched(f"I need the city of {WORKSHOPS[place]}.", WORKSHOPS[place], hits)
    if not right and dice.random() < 0.25:
        scribe.said("<think> Its nation is not known yet.", Malformed("no action was closed"), Outcome.CORRECTED)
        return scribe.trajectory(question, group, sample, step, StopReason.OUT_OF_TURNS)
    if right:
        hits = [Hit(passage(place, 1), 9.75), Hit(passage((place + 2) % len(WORKSHOPS), 1), 3.0)]
        scribe.searched(f"Its nation is not known yet. I need {CITIES[place]}.", CITIES[place], hits)
    answer = NATIONS[place if right else (place + 1) % len(NATIONS)]
    scribe.said(f"<answer> {answer} </answer>", Answer(answer), Outcome.ANSWERED)
    return scribe.trajectory(question, group, sample, step, StopReason.ANSWERED)


def hostile(tokens: Tokens, at: tuple[int, int, int]) -> Trajectory:
    """An episode whose every text is markup that must not be run."""
    step, group, sample = at
    scribe = Scribe(tokens, Random(0), step)
    question = Question("hostile", f"Who wrote {HOSTILE}?", (HOSTILE,), "world", supporting_ids=("h",))
    scribe.given(question.question)
    scribe.searched(f"I think {HOSTILE}", f"query {HOSTILE}", [Hit(Passage("h", f'"{HOSTILE}"\n{HOSTILE}'), 1.0)])
    scribe.said(f"<answer> {HOSTILE} </answer>", Answer(HOSTILE), Outcome.ANSWERED)
    return scribe.trajectory(question, group, sample, step, StopReason.ANSWERED)


def outside(tokens: Tokens, at: tuple[int, int, int]) -> Trajectory:
    """An attempt of an outside agent: a search, a word of the helper model, and a fork in which a writer answers."""
    step, group, sample = at
    scribe = Scribe(tokens, Random(0), step)
    scribe.given(f"Question: {QUESTIONS[0].question}\n")
    scribe.searched(f"I need the city of {WORKSHOPS[0]}.", WORKSHOPS[0], [Hit(passage(0, 0), 12.25)])
    shared = len(scribe.ids)
    call = "<think> I need the nation. </think> <tool_call></tool_call>"
    scribe.said(call, ToolCall("lookup", {"city": CITIES[0], "depth": 2}), Outcome.RETURNED)
    scribe.given(f"{CITIES[0]} lies within the borders of {NATIONS[0]}.")
    first = scribe.trajectory(QUESTIONS[0], group, sample, step, StopReason.ANSWERED)
    writer = Scribe(tokens, Random(1), step, scribe.ids[:shared], [False] * shared)
    writer.given("Question: answer.\n")
    writer.said(f"<answer> {NATIONS[0]} </answer>", Answer(NATIONS[0]), Outcome.ANSWERED)
    second = writer.trajectory(QUESTIONS[0], group, sample, step, StopReason.ANSWERED)
    helper = Turn("The passage is about the city.", Answer("The passage is about the city."), Outcome.ANSWERED, 0)
    return replace(
        first,
        segments=(
            replace(first.segments[0], role="searcher"),
            replace(second.segments[0], role="writer", parent=0, shared=shared),
        ),
        turns=(*first.turns, replace(helper, segment=None), *(replace(turn, segment=1) for turn in second.turns)),
        reward=Score(0.75),
    )


def scored(trajectory: Trajectory) -> Score:
    parts = measure(trajectory.question, trajectory)
    return Score(parts["em"], parts)


@dataclass(frozen=True)
class Library:
    """The folder that is shown, and how to write more into it."""

    folder: Path
    tokens: Tokens

    def run(self, name: str, *, advantage: str = "grpo", samples: int = SAMPLES) -> Run:
        config = {
            "name": name,
            "model": {"policy": "models/small"},
            "algorithm": {"advantage": advantage},
            "train": {"steps": STEPS, "questions": 4, "samples": samples, "learning_rate": 1e-6},
        }
        return Run.create(self.folder / "runs" / name, {"config": config, "code": "0.1.0"})

    def step(self, run: Run, step: int, pace: float = 1.0, *, wild: bool = False) -> None:
        """Records a step as a training loop does: its trajectories, then its metrics."""
        skill = 1 - math.exp(-pace * step / 9)
        played = [
            hostile(self.tokens, (step, group, sample))
            if wild and group == 3
            else episode(self.tokens, (step + group) % len(QUESTIONS), skill, (step, group, sample))
            for group in range(4)
            for sample in range(SAMPLES)
        ]
        scores = [scored(each) for each in played]
        run.write_trajectories(
            step, (row_with_passages(each, score) for each, score in zip(played, scores, strict=True))
        )
        run.write_token_log(step, self._learned(played, scores))
        run.append_metrics(step, self._metrics(step, pace, played, scores))

    def outside_step(self, run: Run, step: int) -> None:
        """Records a step of an outside agent whose writer alone is trained, and a checkpoint with the tokenizer."""
        played = [outside(self.tokens, (step, 0, sample)) for sample in range(2)]
        run.write_trajectories(step, (trajectory_row(each, each.reward) for each in played))
        roles = [[segment.role for segment in each.segments for _ in segment.logprobs] for each in played]
        values = [[1.0 if role == "writer" else None for role in each] for each in roles]
        run.write_token_log(step, ({"advantage": each, "ratio": each} for each in values))
        run.append_metrics(step, {"gateway/attempts": 2.0, "gateway/calls": 6.0, "gateway/segments": 4.0})
        checkpoint(self, run, step)

    @staticmethod
    def _learned(played: list[Trajectory], scores: list[Score]) -> Iterator[dict[str, Any]]:
        """Advantages of groups without their scale, and ratios near one."""
        for place, trajectory in enumerate(played):
            group = scores[place - place % SAMPLES :][:SAMPLES]
            dice = Random(place)
            ratios = [round(dice.gauss(1.0, 0.02), 5) for _ in trajectory.logprobs]
            yield {
                "advantage": scores[place].total - sum(score.total for score in group) / SAMPLES,
                "weight": 1.0,
                "ratio": ratios,
            }

    def _metrics(self, step: int, pace: float, played: list[Trajectory], scores: list[Score]) -> dict[str, float]:
        mean = sum(score.total for score in scores) / len(scores)
        noise = Random(f"{pace} {step}").uniform(0.9, 1.1)
        generate, train, search = 3.1 * noise, 1.4 * noise, 0.8
        return {
            "reward/mean": mean,
            "episode/em": mean,
            "episode/searches": sum(each.searches for each in played) / len(played),
            "episode/tokens": sum(sum(each.sampled) for each in played) / len(played),
            "policy/entropy": 0.9 * math.exp(-pace * step / 14) * noise,
            "policy/kl": 0.002 * step * noise,
            "policy/ratio": 1 + 0.001 * (noise - 1),
            "policy/clipped": 0.02 * noise,
            "policy/gradient_norm": 0.4 * noise,
            "policy/loss": -0.01 * noise,
            "time/generate": generate,
            "time/search": search,
            "time/train": train,
            "time/optimiser": 0.2,
            "time/publish": 0.05,
            "time/step": generate + train + 0.3,
            **(self._held_out(step, pace) if step % 8 == 0 else {}),
        }

    @staticmethod
    def _held_out(step: int, pace: float) -> dict[str, float]:
        value = 1 - math.exp(-pace * step / 12)
        low, high = max(0.0, value - 0.06), min(1.0, value + 0.06)
        return {"evaluate/em": value, "evaluate/em_low": low, "evaluate/em_high": high, "evaluate/searches": 1.5}

    def evaluation(self, name: str, skill: float, times: int = 4) -> EvaluationFolder:
        """A finished evaluation of every question, several times under ids of their own."""
        asked = [
            Question(
                f"{question.id}-{turn}",
                question.question,
                question.golden_answers,
                question.data_source,
                supporting_ids=question.supporting_ids,
                hops=2,
            )
            for turn in range(times)
            for question in QUESTIONS
        ]
        stamp = {"model": name, "code": "0.1.0", "questions": hash_questions(asked)}
        manifest: dict[str, Any] = {
            "title": f"{name}, search, {len(asked)} questions",
            "name": name,
            "stamp": stamp,
            "sample": None,
            "notes": [],
        }
        folder = EvaluationFolder.create_or_resume(self.folder / "evaluations" / name, manifest, asked)
        with folder.appending() as append:
            for place, question in enumerate(asked):
                played = episode(self.tokens, place % len(QUESTIONS), skill, (0, place, 0))
                append(row_with_passages(replace(played, question=question), scored(played), seconds=1.5))
        write_report(folder, load_results(folder))
        return folder


def checkpoint(library: Library, run: Run, step: int) -> None:
    """The tokenizer of a checkpoint, which is all that the viewer reads of it."""
    library.tokens.tokenizer.save_pretrained(run.checkpoint(step))


@pytest.fixture(scope="session")
def shelf() -> Iterator[Path]:
    """A folder in memory where there is such a place: the writers wait for the disk hundreds of times."""
    memory = Path("/dev/shm")  # noqa: S108
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def library(shelf: Path) -> Library:
    """Two finished runs, of which one was rolled back, two evaluations of the same questions, one of fewer."""
    made = Library(shelf, Tokens(build_tokenizer(TEXTS)))
    for name, pace in (("steady", 1.0), ("hasty", 1.8)):
        run = made.run(name, advantage="grpo" if name == "steady" else "rloo")
        for step in range(1, STEPS + 1):
            made.step(run, step, pace, wild=name == "steady" and step == 5)
        checkpoint(made, run, STEPS)
        run.write_summary({"steps": STEPS, "seconds": 120.0, "tokens": 90_000})
    run.append_event(
        9, {"guard": "entropy", "action": "warn", "value": 0.1, "limit": 0.2, "sentence": "the entropy fell to 0.1"}
    )
    run.append_event(
        15, {"guard": "kl", "action": "rollback", "value": 0.4, "limit": 0.1, "sentence": "the KL rose to 0.4"}
    )
    made.evaluation("before", 0.25)
    made.evaluation("after", 0.85)
    made.evaluation("fewer", 0.5, times=2)
    return made


@contextmanager
def viewing(*folders: Path, cache: Path) -> Iterator[str]:
    """The address of `sleuth view`, run as a user runs it."""
    command = [sys.executable, "-c", "from sleuth.cli.main import main; main()", "view", *map(str, folders)]
    options = ["--port", "0", "--no-open", "--cache", str(cache)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " at http" in line
        yield line.rpartition(" at ")[2].partition(";")[0]
        process.terminate()
        process.stdout.close()


@pytest.fixture(scope="session")
def viewer(library: Library) -> Iterator[str]:
    """The address of a viewer of the library."""
    with viewing(library.folder / "runs", library.folder / "evaluations", cache=library.folder / "cache") as address:
        yield address


@pytest.fixture
def bare(library: Library, tmp_path: Path) -> Iterator[tuple[Library, str]]:
    """A library with an empty folder for runs, and the address of a viewer of it."""
    made = replace(library, folder=tmp_path)
    (tmp_path / "runs").mkdir()
    with viewing(tmp_path / "runs", cache=tmp_path / "cache") as address:
        yield made, address


@pytest.fixture(scope="session")
def link(viewer: str) -> Callable[[str], str]:
    """The full address of a place in the viewer."""
    return lambda place: f"{viewer}#/{place}"
