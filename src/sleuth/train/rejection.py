"""Rejection sampling: a model's own episodes, those kept that ended well."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sleuth.agent.batch import run_batch
from sleuth.agent.episode import Agent, Task
from sleuth.records import Question, Score, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.runs.trajectory import row

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

    def take(self, question: Question, episodes: Sequence[Trajectory], rubric: Rubric, terms: Terms) -> None:
        """Adds the episodes of one question."""
        usable = [(each, score) for each, score in map(rubric.scored, episodes) if score is not None]
        kept, source = terms.kept(usable), question.data_source
        self.asked[source] += 1
        self.solved[source] += bool(kept)
        self.kept[source] += len(kept)
        self.unusable[source] += len(episodes) - len(usable)
        self.rows += [row(trajectory, score) for trajectory, score in kept]


async def sample(
    agent: Agent,
    questions: Sequence[Question],
    rubric: Rubric,
    terms: Terms,
    concurrent: int,
    done: Callable[[Trajectory], None] | None = None,
) -> Harvest:
    """Runs the episodes of all questions and keeps those that the terms ask for."""
    harvest = Harvest()
    at_once = max(1, ROUNDS * concurrent // terms.samples)
    for first in range(0, len(questions), at_once):
        some = questions[first : first + at_once]
        episodes = await run_batch(agent, list(_tasks(some, first, terms)), concurrent, done)
        for place, question in enumerate(some):
            harvest.take(question, episodes[place * terms.samples : (place + 1) * terms.samples], rubric, terms)
    return harvest


def _tasks(questions: Sequence[Question], first: int, terms: Terms) -> Iterator[Task]:
    for group, question in enumerate(questions, first):
        for number in range(terms.samples):
            yield Task(question, group, number, seed=terms.seed, temperature=terms.temperature)
