"""An evaluation: questions asked once each, answers scored, failures counted and never scored."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from sleuth.agent.batch import run_batch
from sleuth.agent.episode import Agent, Task
from sleuth.evaluate.intervals import estimate
from sleuth.evaluate.kinds import kind, place
from sleuth.evaluate.results import COUNTS
from sleuth.records import Estimate, Question, Score, Trajectory
from sleuth.reward.rubric import Rubric

Key = TypeVar("Key", bound=Hashable)

_BY_KIND = ("em", "searches")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, what the agent did with it, and its score; None where the trajectory is unusable."""

    question: Question
    trajectory: Trajectory
    score: Score | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Every question asked, in order; means are over the usable ones and refuse to be taken over none."""

    asked: tuple[Asked, ...]

    @property
    def em(self) -> Estimate:
        return self.part("em")

    @property
    def f1(self) -> Estimate:
        return self.part("f1")

    @property
    def searches(self) -> Estimate:
        return self.part("searches")

    def part(self, name: str) -> Estimate:
        """The mean of one part of the score."""
        return estimate([score.parts[name] for score in self.scores()], shares=name not in COUNTS)

    def scores(self) -> list[Score]:
        """The scores of the usable trajectories."""
        return [each.score for each in self.asked if each.score is not None]

    @property
    def unusable(self) -> int:
        """Questions lost to a failure that was not the model's."""
        return sum(each.score is None for each in self.asked)

    def lost(self) -> dict[str, int]:
        """The unusable questions counted by how their episodes ended."""
        return dict(Counter(each.trajectory.stop.value for each in self.asked if each.score is None))

    def by(self, key: Callable[[Question], Key]) -> "dict[Key, Evaluation]":
        """The evaluation in parts, in the order in which their keys first come."""
        parts: dict[Key, list[Asked]] = {}
        for each in self.asked:
            parts.setdefault(key(each.question), []).append(each)
        return {name: Evaluation(tuple(part)) for name, part in parts.items()}

    def by_hops(self) -> "dict[str, Evaluation]":
        """By kind: hops from few to many, then comparisons, yes/no questions and the rest."""
        return dict(sorted(self.by(kind).items(), key=lambda entry: place(entry[0])))

    def metrics(self, prefix: str) -> dict[str, float]:
        """Flat names for a row of metrics: means with `_low` and `_high`, and exact match and searches by kind."""
        flat = {"questions": float(len(self.asked)), "unusable": float(self.unusable)}
        for name, mean in self._means().items():
            flat |= {name: mean.value, f"{name}_low": mean.low, f"{name}_high": mean.high}
        for label, part in self.by_hops().items():
            slug = label.replace(" ", "_").replace("/", "_")
            flat |= {f"{name}_{slug}": part.part(name).value for name in _BY_KIND if part.scores()}
        return {f"{prefix}/{name}": value for name, value in flat.items()}

    def as_json(self) -> dict[str, Any]:
        """Counts, means with intervals, and the same for each kind."""
        kinds = {label: part._counted() for label, part in self.by_hops().items()}
        return {**self._counted(), "by_hops": kinds}

    def _counted(self) -> dict[str, Any]:
        means = {name: asdict(mean) for name, mean in self._means().items()}
        return {"questions": len(self.asked), "unusable": self.unusable, **means}

    def _means(self) -> dict[str, Estimate]:
        """Every mean by name; none where no trajectory is usable, for a mean over nothing is not zero."""
        return {"em": self.em, "f1": self.f1, "searches": self.searches} if self.scores() else {}


async def evaluate(
    agent: Agent,
    questions: Sequence[Question],
    rubric: Rubric,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    step: int = 0,
    concurrent: int = 128,
    done: Callable[[Trajectory], None] | None = None,
    share: tuple[int, int] = (0, 1),
) -> Evaluation:
    """Asks every question once, greedily unless a temperature is given, and scores all that is usable.

    With a share of (2, 4) it is the third of four who ask, each every fourth question.
    """
    mine, everyone = share
    tasks = [
        Task(question, group=number, step=step, seed=seed, temperature=temperature)
        for number, question in enumerate(questions)
        if number % everyone == mine
    ]
    trajectories = await run_batch(agent, tasks, concurrent, done)
    return Evaluation(tuple(asked(trajectory, rubric) for trajectory in trajectories))


def asked(trajectory: Trajectory, rubric: Rubric) -> Asked:
    """A finished trajectory with its score."""
    return Asked(trajectory.question, *rubric.scored(trajectory))
