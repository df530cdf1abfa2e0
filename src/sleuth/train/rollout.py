"""Rollouts: run the questions of a step in groups, score the episodes, and replace groups without a learning signal.

Each rank runs its share of the questions and scores those episodes; the results are then gathered on every rank.
A reward may be random or come from a judge: computed on two ranks, it could differ, and they would keep other groups.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sleuth.agent.episode import Agent, Task, run_batch
from sleuth.config.algorithm import UNGROUPED
from sleuth.config.tree import Config
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.paged.scheduler import EngineStats
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.records import Group, Question, Score, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.train import guards
from sleuth.train.data import QuestionStream
from sleuth.train.metrics import RolloutCounters, Timer, episode_metrics, has_spread, stop_metrics
from sleuth.train.ranks import ALONE, Ranks, cancel_together


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The episodes of a step; `kept` are the groups to learn from, `cost` the metrics of searches and engine."""

    trajectories: list[Trajectory]
    groups: list[Group]
    kept: list[Group]
    questions_drawn: int  # from the stream since the start of the run
    rounds: int
    seconds: float
    cost: Mapping[str, float]

    def metrics(self) -> dict[str, float]:
        dropped = {"group/dropped": float(len(self.groups) - len(self.kept)), "group/rounds": float(self.rounds)}
        return {**episode_metrics(self.groups), **stop_metrics(self.trajectories), **dropped}

    def scored(self) -> list[tuple[Trajectory, Score | None]]:
        """Every trajectory with its score; None for unusable ones."""
        scores = {
            id(each): score
            for group in self.groups
            for each, score in zip(group.trajectories, group.scores, strict=True)
        }
        return [(trajectory, scores.get(id(trajectory))) for trajectory in self.trajectories]


@dataclass(frozen=True, slots=True)
class RolloutSampler:
    """Collects the rollouts of a run."""

    agent: Agent
    rubric: Rubric
    stream: QuestionStream
    config: Config
    ranks: Ranks = ALONE

    async def collect(self, step: int, questions_drawn: int) -> RolloutBatch:
        """Run and score the episodes of a step, starting at this position of the question stream."""
        started, train, before = time.monotonic(), self.config.train, self._counters()
        trajectories: list[Trajectory] = []
        groups: list[Group] = []
        kept: list[Group] = []
        drawn = rounds = 0
        timer = Timer()
        while rounds <= train.resample and len(kept) < train.questions:
            questions = self.stream.take(questions_drawn + drawn, train.questions - len(kept))
            scored = await self._run(questions, step, drawn, timer)
            trajectories += [each.trajectory for each in scored]
            guards.require_usable([each.trajectory for each in scored])
            new = group_by_question(scored)
            groups += new
            kept += [group for group in new if self._has_signal(group)]
            drawn, rounds = drawn + len(questions), rounds + 1
        seconds = time.monotonic() - started
        cost = self._counters().metrics_since(before, timer.collect()["time/reward"], self.ranks)
        return RolloutBatch(trajectories, groups, kept, questions_drawn + drawn, rounds, seconds, cost)

    def _counters(self) -> RolloutCounters:
        engine = self.agent.engine
        stats = engine.stats if isinstance(engine, PagedEngine) else EngineStats()
        toolbox = self.agent.tools
        tools = {name: replace(usage) for name, usage in toolbox.usage.items()}
        return RolloutCounters(replace(toolbox.searches), replace(stats), tools)

    def _has_signal(self, group: Group) -> bool:
        """A group baseline needs two samples, and with `train.resample` rewards that differ."""
        ungrouped = self.config.algorithm.advantage in UNGROUPED
        enough = len(group.trajectories) >= (1 if ungrouped else min(2, self.config.train.samples))
        return enough and (not self.config.train.resample or has_spread(group))

    async def _run(self, questions: Sequence[Question], step: int, first: int, timer: Timer) -> list[ScoredTrajectory]:
        """Run every question `train.samples` times; group ids count the questions of the step from `first`."""
        train, ranks = self.config.train, self.ranks
        tasks = [
            Task(question, first + index, sample, step + 1, train.seed, train.temperature, train.top_p, train.top_k)
            for index, question in enumerate(questions)
            for sample in range(train.samples)
            if index % ranks.world == ranks.rank
        ]
        trajectories = await cancel_together(run_batch(self.agent, tasks, self.config.concurrency), ranks)
        with timer.time("reward"):
            mine = [ScoredTrajectory(*scored) for scored in await self.rubric.score_all(trajectories)]
        gathered = ranks.gather(mine, f"the episodes of step {step + 1} from question {first}")
        every = [each for theirs in gathered for each in theirs]
        return sorted(every, key=lambda each: (each.trajectory.group, each.trajectory.sample))


def group_by_question(scored: Sequence[ScoredTrajectory]) -> list[Group]:
    """The usable trajectories of each question with their scores."""
    questions = {each.trajectory.group: each.trajectory.question for each in scored}
    usable: dict[int, list[tuple[Trajectory, Score]]] = {key: [] for key in questions}
    for each in scored:
        if each.score is not None:
            usable[each.trajectory.group].append((each.trajectory, each.score))
    return [
        Group(questions[key], tuple(each for each, _ in pairs), tuple(score for _, score in pairs))
        for key, pairs in usable.items()
    ]
