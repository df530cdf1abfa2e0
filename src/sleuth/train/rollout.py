"""Rollouts: the questions of a step are asked, their episodes scored, and groups that teach nothing replaced.

Each rank asks its share of the questions and scores their episodes; all of them then know every episode and its score.
A reward may be random or a judge's: computed twice, it could differ, and the ranks would keep different groups.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sleuth.agent.batch import run_batch
from sleuth.agent.episode import Agent, Task
from sleuth.config.algorithm import UNGROUPED
from sleuth.config.tree import Config
from sleuth.engines.paged.schedule import EngineStats
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.records import Group, Malformed, Question, Score, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.train import guards
from sleuth.train.clock import Clock
from sleuth.train.questions import QuestionStream
from sleuth.train.ranks import ALONE, Ranks
from sleuth.train.spent import Spent
from sleuth.train.stopping import together

PARTS = ("em", "f1", "format", "searches", "retrieval_hit")


@dataclass(frozen=True, slots=True)
class Harvest:
    """The episodes of a step: all of them, the groups to learn from, and how many questions they took.

    `spent` is what there is to record of the searches and the engine.
    """

    trajectories: list[Trajectory]
    groups: list[Group]
    kept: list[Group]
    asked: int
    rounds: int
    seconds: float
    spent: Mapping[str, float]

    def metrics(self) -> dict[str, float]:
        """What there is to record of them."""
        dropped = {"group/dropped": float(len(self.groups) - len(self.kept)), "group/rounds": float(self.rounds)}
        return {**_episodes(self.groups), **guards.shares(self.trajectories), **dropped}

    def scored(self) -> list[tuple[Trajectory, Score | None]]:
        """Every episode with its score; None for an unusable one."""
        known = {
            id(each): score for one in self.groups for each, score in zip(one.trajectories, one.scores, strict=True)
        }
        return [(trajectory, known.get(id(trajectory))) for trajectory in self.trajectories]


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks the questions of a run in groups; `tally` tells what the engine has done so far."""

    agent: Agent
    rubric: Rubric
    stream: QuestionStream
    config: Config
    ranks: Ranks = ALONE
    tally: Callable[[], EngineStats] = EngineStats

    async def harvest(self, step: int, asked: int) -> Harvest:
        """The episodes of a step whose first question is the one at place `asked` of the stream."""
        began, train, before = time.monotonic(), self.config.train, self._spent()
        trajectories: list[Trajectory] = []
        groups: list[Group] = []
        kept: list[Group] = []
        taken = rounds = 0
        clock = Clock()
        while rounds <= train.resample and len(kept) < train.questions:
            questions = self.stream.take(asked + taken, train.questions - len(kept))
            found = await self._ask(questions, step, taken, clock)
            trajectories += [each.trajectory for each in found]
            guards.usable([each.trajectory for each in found])
            fresh = group(found)
            groups += fresh
            kept += [each for each in fresh if self._teaches(each)]
            taken, rounds = taken + len(questions), rounds + 1
        seconds, spent = time.monotonic() - began, self._spent().since(before, clock.taken()["time/reward"], self.ranks)
        return Harvest(trajectories, groups, kept, asked + taken, rounds, seconds, spent)

    def _spent(self) -> Spent:
        return Spent.so_far(self.agent.tool.waits, self.tally)

    def _teaches(self, each: Group) -> bool:
        """One sample has nothing to be compared with, unless it is with the whole batch or with a critic."""
        alone = self.config.algorithm.advantage in UNGROUPED
        enough = len(each.trajectories) >= (1 if alone else min(2, self.config.train.samples))
        return enough and (not self.config.train.resample or _spread(each))

    async def _ask(self, questions: Sequence[Question], step: int, first: int, clock: Clock) -> list[ScoredTrajectory]:
        """Every question as often as a group has samples, scored; groups are keyed by their place in the step."""
        train, ranks = self.config.train, self.ranks
        tasks = [
            Task(question, first + place, sample, step + 1, train.seed, train.temperature)
            for place, question in enumerate(questions)
            for sample in range(train.samples)
            if place % ranks.world == ranks.rank
        ]
        found = await together(run_batch(self.agent, tasks, self.config.concurrency), ranks)
        with clock.part("reward"):
            mine = [ScoredTrajectory(*self.rubric.scored(trajectory)) for trajectory in found]
        gathered = ranks.gather(mine, f"the episodes of step {step + 1} from question {first}")
        every = [each for theirs in gathered for each in theirs]
        return sorted(every, key=lambda each: (each.trajectory.group, each.trajectory.sample))


def group(found: Sequence[ScoredTrajectory]) -> list[Group]:
    """The usable trajectories of each group with their scores."""
    keyed: dict[int, list[tuple[Trajectory, Score]]] = {}
    for each in found:
        keyed.setdefault(each.trajectory.group, [])
        if each.score is not None:
            keyed[each.trajectory.group].append((each.trajectory, each.score))
    questions = {each.trajectory.group: each.trajectory.question for each in found}
    return [
        Group(questions[key], tuple(each for each, _ in usable), tuple(score for _, score in usable))
        for key, usable in keyed.items()
    ]


def _spread(each: Group) -> bool:
    return len({score.total for score in each.scores}) > 1


def _episodes(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the usable episodes, of which there are some."""
    scores = [score for each in groups for score in each.scores]
    trajectories = [trajectory for each in groups for trajectory in each.trajectories]
    count = len(scores)
    sampled = sum(len(trajectory.logprobs) for trajectory in trajectories)
    return {
        "reward/mean": sum(score.total for score in scores) / count,
        **{f"episode/{name}": sum(score.parts[name] for score in scores) / count for name in PARTS},
        "episode/tokens": sampled / count,
        "episode/tokens_all": float(sum(len(trajectory.ids) for trajectory in trajectories)),
        "episode/malformed": sum(map(_malformed, trajectories)) / count,
        "episode/answerless": sum(trajectory.answer is None for trajectory in trajectories) / count,
        "group/with_spread": sum(map(_spread, groups)) / len(groups),
        **_likelihood(groups),
    }


def _malformed(trajectory: Trajectory) -> bool:
    return any(isinstance(turn.action, Malformed) for turn in trajectory.turns)


def _likelihood(groups: Sequence[Group]) -> dict[str, float]:
    """The mean logprob of what right episodes said; nothing where none was right."""
    right = [
        logprob
        for each in groups
        for trajectory, score in zip(each.trajectories, each.scores, strict=True)
        if score.parts["em"] == 1.0
        for logprob in trajectory.logprobs
    ]
    return {"policy/likelihood_right": sum(right) / len(right)} if right else {}
