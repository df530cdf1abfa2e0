"""Asynchronous rollouts of several ranks: every rank gets the same batches, and any number of ranks goes on."""

import asyncio
import pickle
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sleuth.agent.task import Task
from sleuth.errors import UserError
from sleuth.records import Segment, Trajectory
from sleuth.runs.json_files import read_rows
from sleuth.train.checkpoint import Progress
from sleuth.train.curriculum import Curriculum
from sleuth.train.parts import Parts
from sleuth.train.rollout import RolloutBatch
from sleuth.train.streaming import FOLDER, TakenGroups, schedule_rollouts, stream_state

Making = Callable[..., Parts]
Make = Callable[..., Trajectory]
QUESTIONS, STALENESS, STEPS = 6, 2, 6


class Together:
    """What the ranks of a test, which are threads, gather."""

    def __init__(self, world: int) -> None:
        self.sent: list[bytes] = [b""] * world
        self.barrier = threading.Barrier(world, timeout=60)


@dataclass(frozen=True)
class ThreadRanks:
    rank: int
    world: int
    together: Together

    def gather(self, mine: Sequence[Any], operation: str) -> list[list[Any]]:
        self.together.sent[self.rank] = pickle.dumps((operation, list(mine)))
        self.together.barrier.wait()
        every = [pickle.loads(each) for each in self.together.sent]  # noqa: S301  of this test
        self.together.barrier.wait()
        assert {theirs for theirs, _ in every} == {operation}
        return [items for _, items in every]

    def barrier(self, operation: str) -> None:
        self.gather([], operation)

    def for_thread(self) -> "ThreadRanks":
        return self

    def close(self) -> None:
        """Nothing to leave."""


@dataclass
class Episodes:
    """Episodes of random length; each has a number of its own, and the versions from its start to its end."""

    template: Trajectory
    dice: random.Random = field(default_factory=random.Random)
    numbers: "count[int]" = field(default_factory=count)
    version: int = 0
    asked: list[int] = field(default_factory=list)

    async def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
        self.asked.append(tasks[0].group)
        started = self.version
        await asyncio.sleep(self.dice.choice((0.0, 0.001, 0.02)))
        return [self._make(task, started) for task in tasks]

    def _make(self, task: Task, started: int) -> Trajectory:
        # Even positions have no reward spread: their samples are as varied as each other.
        second = next(self.numbers) if task.group % 2 and task.sample else 10_000
        segment = Segment((10_000, second), (True, True), (-1.0, -1.0), (started, self.version))
        return replace(self.template, question=task.question, group=task.group, sample=task.sample, segments=(segment,))


@dataclass
class Fleet:
    """Several ranks, whose trainer only takes the groups of its steps."""

    parts: Parts
    folder: Path
    episodes: Episodes
    batches: dict[int, RolloutBatch] = field(default_factory=dict)

    def run(self, world: int, progress: Progress, until: int) -> Progress:
        """Train from a checkpoint to a step with so many ranks, then end as if killed; return the progress."""
        together = Together(world)
        self.episodes.version = progress.step

        def work(rank: int) -> list[RolloutBatch]:
            ranks = ThreadRanks(rank, world, together)
            sampler = replace(self.parts.sampler, ranks=ranks, episodes=self.episodes)
            if curriculum := self._curriculum():
                sampler = replace(sampler, stream=replace(sampler.stream, curriculum=curriculum))
            made = []
            with schedule_rollouts(sampler, self.parts.publisher, self.folder) as rollouts:
                rollouts.restore(progress)
                for step in range(progress.step, until):
                    made.append(rollouts.next_batch(step, 0, last=False))
                    if rank == 0:
                        self.episodes.version = step + 1
                        if curriculum is not None:
                            curriculum.record(step + 1, made[-1].groups)
                    rollouts.advance(step + 1)
            return made

        with ThreadPoolExecutor(world) as threads:
            first, *others = threads.map(work, range(world))
        for other in others:
            assert list(map(summary, other)) == list(map(summary, first))
        for step, batch in enumerate(first, progress.step + 1):
            if step in self.batches:  # repeated after a kill
                assert summary(batch) == summary(self.batches[step])
            self.batches[step] = batch
        if not first:
            return progress
        return replace(progress, step=until, questions_drawn=first[-1].questions_drawn, untrained=first[-1].untrained)

    def _curriculum(self) -> Curriculum | None:
        """Of one rank: ranks share nothing but the run folder."""
        train, stream = self.parts.config.train, self.parts.sampler.stream
        return None if train.curriculum == "none" else Curriculum(self.folder, stream.questions, train)


def summary(batch: RolloutBatch) -> Any:
    samples = [
        (each.group, each.question.id, each.sample, each.step, each.ids, each.versions) for each in batch.trajectories
    ]
    return samples, [group.question.id for group in batch.kept]


@pytest.fixture
def fleet(parts: Making, trajectory: Make, tmp_path: Path, judged: str) -> Callable[..., Fleet]:
    def make(seed: int, **train: Any) -> Fleet:
        tables = {"mode": "async", "questions": QUESTIONS, "samples": 2, "staleness": STALENESS, "steps": STEPS}
        made = parts(
            tmp_path / "run",
            train={**tables, **train},
            algorithm={"correction": {"level": "token"}},
            reward={"answer": judged},
        )
        return Fleet(made, tmp_path / "run", Episodes(trajectory(), random.Random(seed)))

    return make


@pytest.mark.parametrize("worlds", [(2, 2), (2, 1), (1, 3), (3, 2)])
def test_killed_run_goes_on_with_another_number_of_ranks(worlds: tuple[int, int], fleet: Callable[..., Fleet]) -> None:
    """Killed twice: two steps after the start without a checkpoint, then one step after the checkpoint of step 3."""
    before, after = worlds
    made = fleet(seed=10 * before + after)
    start = Progress()
    made.run(before, start, 2)
    saved = made.run(after, start, 3)
    made.run(before, saved, 4)
    end = made.run(after, saved, STEPS)
    trained = [each.group for step in range(1, STEPS + 1) for each in made.batches[step].trajectories[::2]]
    assert sorted(trained) == list(range(QUESTIONS * STEPS))
    assert (end.questions_drawn, end.untrained) == (QUESTIONS * STEPS, ())
    for step, batch in made.batches.items():
        ages = [step - 1 - version for each in batch.trajectories for version in each.versions]
        assert 0 <= min(ages) <= max(ages) <= STALENESS
    # A question is asked again only if its group was being sampled when the run was killed.
    assert max(Counter(made.episodes.asked).values()) <= 4
    logged = [row["position"] for path in (made.folder / FOLDER).iterdir() for row in read_rows(path) if "id" in row]
    assert len(set(logged)) == len(logged)


def test_ranks_that_replace_more_groups_than_others_skip_no_question(fleet: Callable[..., Fleet]) -> None:
    """Of two ranks, the first draws the even positions, which have no reward spread, until another process shares."""
    made = fleet(seed=0, resample=2)
    saved = made.run(2, Progress(), 2)
    drawn = {each.group for batch in made.batches.values() for each in batch.trajectories}
    assert drawn | set(saved.untrained) == set(range(saved.questions_drawn))
    assert drawn.isdisjoint(saved.untrained)
    end = made.run(3, saved, STEPS)
    groups = [each.group for batch in made.batches.values() for each in batch.trajectories[::2]]
    assert len(set(groups)) == len(groups)
    assert set(groups) | set(end.untrained) == set(range(end.questions_drawn))


def test_ranks_ask_the_questions_of_a_position_in_the_order_that_was_fixed_first(fleet: Callable[..., Fleet]) -> None:
    """With a curriculum, whose orders outlive a kill, whichever ranks go on."""
    made = fleet(seed=0, curriculum="spread")
    saved = made.run(2, Progress(), 1)
    made.run(2, saved, 4)
    made.run(3, saved, STEPS)
    asked = {each.group: each.question.id for batch in made.batches.values() for each in batch.trajectories}
    for first in range(0, len(asked) - 4, 5):
        assert sorted(asked[first + each] for each in range(5)) == ["q0", "q1", "q2", "q3", "q4"]


def test_positions_that_a_slower_rank_has_not_drawn_are_untrained() -> None:
    first = TakenGroups([], replayed=False, ready=0, next=10, untrained=(8, 2), idle=0.0, reward=0.0)
    second = replace(first, next=5, untrained=(3,))
    assert stream_state([first, second]) == (9, (2, 3, 5, 7, 8))
    assert stream_state([first]) == (10, (2, 8))


def test_failure_of_one_rank_ends_it_without_waiting_for_the_others(fleet: Callable[..., Fleet]) -> None:
    made = fleet(seed=0)

    class Failing(Episodes):
        async def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
            if tasks[0].group == 1:
                raise UserError("the index is gone")
            return await super().run(tasks)

    made.episodes = Failing(made.episodes.template)
    together = Together(2)

    def work(rank: int) -> None:
        sampler = replace(made.parts.sampler, ranks=ThreadRanks(rank, 2, together), episodes=made.episodes)
        with schedule_rollouts(sampler, made.parts.publisher, made.folder) as rollouts:
            rollouts.restore(Progress())
            try:
                rollouts.next_batch(0, 0, last=False)
            finally:
                together.barrier.abort()  # as the end of its process

    with ThreadPoolExecutor(2) as threads:
        first, second = (threads.submit(work, rank) for rank in range(2))
    assert isinstance(first.exception(), threading.BrokenBarrierError)
    with pytest.raises(UserError, match="the index is gone"):
        second.result()
