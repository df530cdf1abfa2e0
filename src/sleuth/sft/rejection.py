"""Rejection sampling: a model's own episodes, those kept that ended well."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from sleuth.agent.episode import Agent, Task, run_batch
from sleuth.errors import InputError
from sleuth.records import Question, Score, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.runs.atomic import explain_write_errors
from sleuth.runs.json_files import append_row, read_rows
from sleuth.runs.lock import acquire
from sleuth.runs.trajectory import trajectory_row

COUNTS = ("asked", "solved", "kept", "unusable")
ROUNDS = 8  # times the engine is filled before what was kept is taken out of memory

Preference = Literal["first", "searches", "tokens"]
Scored = tuple[Trajectory, Score]


@dataclass(frozen=True, slots=True)
class Terms:
    """What is kept: episodes with this reward at least (None: exact match), some of each question, by preference."""

    samples: int
    min_reward: float | None = None
    per_question: int = 1
    prefer: Preference = "first"
    temperature: float = 1.0
    seed: int = 0

    def kept(self, episodes: Sequence[Scored]) -> list[Scored]:
        """Those of one question; the same tokens are kept once."""
        good = {each[0].ids: each for each in reversed(episodes) if self._good(each[1])}
        return sorted(good.values(), key=self._place)[: self.per_question]

    def _good(self, score: Score) -> bool:
        return score.parts["em"] == 1.0 if self.min_reward is None else score.total >= self.min_reward

    def _place(self, scored: Scored) -> tuple[int, int, int]:
        trajectory, _ = scored
        searches, tokens = trajectory.searches, sum(trajectory.sampled)
        match self.prefer:
            case "searches":
                return searches, tokens, trajectory.sample
            case "tokens":
                return tokens, searches, trajectory.sample
            case "first":
                return trajectory.sample, 0, 0


@dataclass(slots=True)
class Harvest:
    """What was kept, and of each set how many questions were asked, solved, and how many episodes kept or unusable."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    solved: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    unusable: Counter[str] = field(default_factory=Counter)
    failure: str = field(default="", init=False)  # of the newest unusable episode; a journal does not keep it

    async def take(self, question: Question, episodes: Sequence[Trajectory], rubric: Rubric, terms: Terms) -> None:
        """Adds the episodes of one question."""
        scored = await rubric.score_all(episodes)
        usable = [(each, score) for each, score in scored if score is not None]
        self.failure = next((each.failure for each, _ in scored if each.failure), self.failure)
        kept, source = terms.kept(usable), question.data_source
        self.asked[source] += 1
        self.solved[source] += bool(kept)
        self.kept[source] += len(kept)
        self.unusable[source] += len(episodes) - len(usable)
        self.rows += [trajectory_row(trajectory, score) for trajectory, score in kept]

    def add(self, other: "Harvest") -> None:
        """Adds what was kept of other questions."""
        self.rows += other.rows
        for name in COUNTS:
            getattr(self, name).update(getattr(other, name))


@dataclass(frozen=True, slots=True)
class Journal:
    """What was sampled so far, in a file beside the one to be written: after a kill, the same command goes on."""

    path: Path

    @classmethod
    @contextmanager
    def held(cls, out: Path, order: Mapping[str, Any]) -> "Iterator[Journal]":
        """The journal of a trace file; removed when the work inside is done, kept where that was interrupted.

        An order is whatever decides the result; a journal of another order may hold hours of work, and stays.
        """
        path = out.with_name(f".sampling-{out.name}.jsonl")
        with ExitStack() as kept:
            with explain_write_errors(out):
                path.parent.mkdir(parents=True, exist_ok=True)
                file = kept.enter_context(path.open("ab"))
            acquire(file, f"another process is sampling for {out}; wait for it, or end it first")
            # Half a line, written when a process was killed, would spoil the next.
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
            cls(path)._begin(json.loads(json.dumps({"order": order})))
            yield cls(path)
            path.unlink()

    def _begin(self, order: Mapping[str, Any]) -> None:
        first = next(read_rows(self.path), None)
        if first is None:
            append_row(self.path, order)
        elif first != order:
            raise InputError(
                f"{self.path} holds unfinished sampling by another model or with other settings; give those again to "
                "finish it, or remove that file"
            )

    def harvest(self) -> Harvest:
        """What an interrupted command had sampled."""
        harvest = Harvest()
        for written in islice(read_rows(self.path), 1, None):
            counts: dict[str, Counter[str]] = {name: Counter(written[name]) for name in COUNTS}
            harvest.add(Harvest(written["rows"], **counts))
        return harvest

    def append(self, fresh: Harvest) -> None:
        append_row(self.path, {name: getattr(fresh, name) for name in ("rows", *COUNTS)})


async def sample(
    agent: Agent,
    questions: Sequence[Question],
    rubric: Rubric,
    terms: Terms,
    concurrent: int,
    done: Callable[[Trajectory], None] | None = None,
    journal: Journal | None = None,
) -> Harvest:
    """Runs the episodes of all questions and keeps those that the terms ask for; a journal's are not run again."""
    harvest = Harvest() if journal is None else journal.harvest()
    at_once = max(1, ROUNDS * concurrent // terms.samples)
    for first in range(harvest.asked.total(), len(questions), at_once):
        some = questions[first : first + at_once]
        episodes = await run_batch(agent, list(_tasks(some, first, terms)), concurrent, done)
        fresh = Harvest()
        for place, question in enumerate(some):
            await fresh.take(question, episodes[place * terms.samples : (place + 1) * terms.samples], rubric, terms)
        if fresh.unusable.total() == len(episodes):
            # Not into the journal: the same command asks these questions again.
            raise InputError(
                f"all {len(episodes):,} episodes of {len(some):,} questions were lost ({fresh.failure}); fix the cause "
                "and give the same command again: what was sampled before is kept"
            )
        if journal is not None:
            journal.append(fresh)
        harvest.add(fresh)
    return harvest


def _tasks(questions: Sequence[Question], first: int, terms: Terms) -> Iterator[Task]:
    for group, question in enumerate(questions, first):
        for number in range(terms.samples):
            yield Task(question, group, number, seed=terms.seed, temperature=terms.temperature)
