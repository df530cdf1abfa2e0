"""Rollouts: sample a group of episodes per question, score them, and replace groups without a learning signal.

Each rank runs and scores the episodes of its share of the questions; results are gathered on every rank.
Each reward is computed on one rank only: a random or judged reward could differ between ranks.
Rollouts are collected synchronously, or one step ahead while the previous step trains; `streaming` has the third
schedule, which samples group by group.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from sleuth.agent.episode import Agent
from sleuth.agent.task import Task
from sleuth.config.algorithm import UNGROUPED
from sleuth.config.tree import Config
from sleuth.engines.paged.scheduler import EngineStats
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.gateway.outside import OutsideAgent
from sleuth.records import Branch, Group, Question, Score, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.runs.interruption import INTERRUPTION
from sleuth.train import guards
from sleuth.train.checkpoint import Progress
from sleuth.train.data import QuestionStream
from sleuth.train.episodes import EpisodeRunner, LocalEpisodes
from sleuth.train.metrics import RolloutCounters, Timer, episode_metrics, has_spread, stop_metrics
from sleuth.train.publish import Publisher
from sleuth.train.ranks import ALONE, Ranks, cancel_together
from sleuth.train.tree import sample_trees

Result = TypeVar("Result")
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Episodes of a step; `kept` holds the groups to learn from, `cost` the search, engine and buffer metrics."""

    trajectories: list[Trajectory]
    groups: list[Group]
    kept: list[Group]
    questions_drawn: int  # from the question stream since the start of the run
    rounds: int
    seconds: float
    cost: Mapping[str, float]
    untrained: tuple[int, ...] = ()  # positions of the stream that were drawn, and are in no step yet

    def metrics(self) -> dict[str, float]:
        dropped = {"group/dropped": float(len(self.groups) - len(self.kept)), "group/rounds": float(self.rounds)}
        return {**episode_metrics(self.groups), **stop_metrics(self.trajectories), **dropped}

    def scored(self) -> list[tuple[Trajectory, Score | None]]:
        """Return every trajectory with its score; the score is None for unusable trajectories."""
        pairs = [pair for group in self.groups for pair in zip(group.trajectories, group.scores, strict=True)]
        scores = {id(trajectory): score for trajectory, score in pairs}
        return [(trajectory, scores.get(id(trajectory))) for trajectory in self.trajectories]


@dataclass(frozen=True, slots=True)
class RolloutSampler:
    """Collects the rollouts of a run; `episodes` runs them elsewhere than in this process."""

    agent: Agent | OutsideAgent
    rubric: Rubric
    stream: QuestionStream
    config: Config
    ranks: Ranks = ALONE
    episodes: EpisodeRunner | None = None

    @property
    def runner(self) -> EpisodeRunner:
        """The runner of the episodes; in this process, each has a limit of its own."""
        return self.episodes or LocalEpisodes(self.agent, self.config.concurrency, self.config.train.samples)

    async def collect(self, step: int, questions_drawn: int) -> RolloutBatch:
        """Run and score the episodes of a step, starting at this position of the question stream."""
        started, train, before = time.monotonic(), self.config.train, self.counters()
        trajectories: list[Trajectory] = []
        groups: list[Group] = []
        kept: list[Group] = []
        drawn = rounds = 0
        timer = Timer()
        if self.stream.curriculum is not None:
            last = questions_drawn + train.questions * (1 + train.resample) - 1
            # The step before this one may still be training, and is then not recorded.
            self.stream.curriculum.prepare(questions_drawn, last, step - train.max_staleness, self.ranks)
        while rounds <= train.resample and len(kept) < train.questions:
            questions = self.stream.take(questions_drawn + drawn, train.questions - len(kept))
            scored = await self._run(questions, step, drawn, timer)
            trajectories += [each.trajectory for each in scored]
            guards.require_usable([each.trajectory for each in scored])
            new = group_by_question(scored)
            groups += new
            kept += filter(self.is_kept, new)
            drawn, rounds = drawn + len(questions), rounds + 1
        seconds = time.monotonic() - started
        cost = self.counters().metrics_since(before, timer.collect()["time/reward"], self.ranks)
        return RolloutBatch(trajectories, groups, kept, questions_drawn + drawn, rounds, seconds, cost)

    def is_kept(self, group: Group) -> bool:
        """Whether to learn from a group: it has enough usable samples and, with `train.resample`, reward spread."""
        train = self.config.train
        # A group baseline needs two samples.
        enough = 1 if self.config.algorithm.advantage in UNGROUPED else min(2, train.samples)
        return len(group.trajectories) >= enough and (not train.resample or has_spread(group))

    def counters(self) -> RolloutCounters:
        """Return a snapshot of the counters of search, engine, tools and outside agent."""
        engine, toolbox = self.agent.engine, self.agent.tools
        stats: EngineStats = getattr(engine, "stats", EngineStats())  # servers do not count their work
        tools = {name: replace(usage) for name, usage in toolbox.usage.items()}
        outside = replace(self.agent.counts) if isinstance(self.agent, OutsideAgent) else None
        return RolloutCounters(replace(toolbox.searches), replace(stats), tools, outside)

    async def sample_group(self, position: int, runner: EpisodeRunner, timer: Timer) -> list[ScoredTrajectory]:
        """Run and score all samples of the question at a position of the stream, which is the id of its group.

        Seeds depend on the position alone, not on the step that trains on the group.
        """
        tasks = self._tasks(self.stream.take(position, 1), position // self.config.train.questions, position)
        return await self._score(await self._attempt(tasks, runner), timer)

    async def _run(self, questions: Sequence[Question], step: int, first: int, timer: Timer) -> list[ScoredTrajectory]:
        """Run each question `train.samples` times; group ids are consecutive, starting at `first`."""
        ranks, tasks = self.ranks, self._tasks(questions, step, first)
        mine = [task for task in tasks if (task.group - first) % ranks.world == ranks.rank]
        scored = await self._score(await cancel_together(self._attempt(mine, self.runner), ranks), timer)
        gathered = ranks.gather(scored, f"the episodes of step {step + 1} from question {first}")
        every = [each for theirs in gathered for each in theirs]
        return sorted(every, key=lambda each: (each.trajectory.group, each.trajectory.sample))

    async def _attempt(self, tasks: Sequence[Task], runner: EpisodeRunner) -> list[Trajectory]:
        tree = self.config.train.tree
        return await (sample_trees(runner.run, tasks, tree) if tree.trees else runner.run(tasks))

    def _tasks(self, questions: Sequence[Question], step: int, first: int) -> list[Task]:
        """The tasks of each question: all its samples, or the first episode of each of its trees."""
        train = self.config.train
        shared = (step + 1, train.seed, train.temperature, train.top_p, train.top_k)
        trees = train.tree.trees
        return [
            Task(question, first + index, sample, *shared, branch=Branch(sample) if trees else None)
            for index, question in enumerate(questions)
            for sample in range(trees or train.samples)
        ]

    async def _score(self, trajectories: Sequence[Trajectory], timer: Timer) -> list[ScoredTrajectory]:
        with timer.time("reward"):
            return [ScoredTrajectory(*scored) for scored in await self.rubric.score_all(trajectories)]


def group_by_question(scored: Sequence[ScoredTrajectory]) -> list[Group]:
    """Group the usable trajectories by question, with their scores."""
    by_group: dict[int, list[ScoredTrajectory]] = defaultdict(list)
    for each in scored:
        by_group[each.trajectory.group].append(each)
    return [
        Group(
            members[0].trajectory.question,
            tuple(each.trajectory for each in members if each.score is not None),
            tuple(each.score for each in members if each.score is not None),
        )
        for members in by_group.values()
    ]


Collect = Callable[[int, int], Coroutine[Any, Any, RolloutBatch]]


class RolloutSchedule:
    """Synchronous schedule: collects the rollouts of each step on demand, with the current weights."""

    def __init__(self, collect: Collect) -> None:
        self._collect, self._runner = collect, asyncio.Runner()

    def next_batch(self, step: int, questions_drawn: int, last: bool) -> RolloutBatch:  # noqa: ARG002
        """Return the rollouts of a step, starting at this position in the question stream."""
        return self.run(self._collect(step, questions_drawn))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine that uses the engine, such as an evaluation, while no rollout is in flight."""
        with raise_interrupts():
            return self._runner.run(work)

    def restore(self, progress: Progress) -> None:
        """Continue from a checkpoint or from the start of the run, before the first batch."""

    def advance(self, version: int) -> None:
        """Note that a step is trained and its weights are published."""

    def wait_idle(self) -> None:
        """Wait until no rollout is in flight if the weights may change only then."""

    def discard(self) -> None:
        """Discard rollouts collected in advance for a step that will not run."""

    def prune(self, step: int) -> None:
        """Remove from disk what is not needed to resume from the checkpoint of a step."""

    def cancel(self) -> None:
        """Cancel rollouts in flight because the run ends with an error or an interrupt."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.close()


class OneStepAhead(RolloutSchedule):
    """Collects the next step's rollouts in a thread during training; their weights are one version old."""

    def __init__(self, collect: Collect, publisher: Publisher) -> None:
        super().__init__(collect)
        self._publisher = publisher
        self._thread = ThreadPoolExecutor(1, "episodes")
        self._pending: tuple[int, Future[RolloutBatch]] | None = None
        # The thread's latest future and its task, which signals do not reach.
        self._running: tuple[Future[Any], Future[asyncio.Task[Any]]] | None = None

    def next_batch(self, step: int, questions_drawn: int, last: bool) -> RolloutBatch:
        if self._pending is None or self._pending[0] != step:
            self.discard()
            self._publisher.publish(step)
            self._pending = (step, self._submit(self._collect(step, questions_drawn)))
        with raise_interrupts():
            batch = wait_for(self._pending[1]).result()
        self._pending = None
        if not last:
            self._publisher.publish(step)
            self._pending = (step + 1, self._submit(self._collect(step + 1, batch.questions_drawn)))
        return batch

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        self.wait_idle()
        with raise_interrupts():
            return wait_for(self._submit(work)).result()

    def wait_idle(self) -> None:
        if self._pending is not None:
            wait_for(self._pending[1])  # its error, if any, is raised by next_batch

    def discard(self) -> None:
        self.wait_idle()
        self._pending = None

    def cancel(self) -> None:
        if self._running is None:
            return
        ended, started = self._running
        task = started.result()
        if not ended.done():
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        started: Future[asyncio.Task[Any]] = Future()

        async def run() -> Result:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101  a coroutine runs in a task
            started.set_result(task)
            return await work

        ended = self._thread.submit(self._runner.run, run())
        self._running = (ended, started)
        return ended

    def __exit__(self, *error: object) -> None:
        self._thread.submit(self._runner.close)  # an event loop is closed in its own thread
        self._thread.shutdown()


@contextmanager
def raise_interrupts() -> Iterator[None]:
    """Raise Interrupted instead of CancelledError if a signal cancelled the work."""
    try:
        yield
    except asyncio.CancelledError:
        INTERRUPTION.raise_if_interrupted()
        raise


def wait_for(future: Future[Result]) -> Future[Result]:
    """Wait in short intervals, so that the main thread handles signals that arrive in another thread."""
    while wait([future], timeout=POLL_SECONDS).not_done:
        pass
    return future
