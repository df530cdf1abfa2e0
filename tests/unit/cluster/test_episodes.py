"""Dispatch of episodes: in order, least loaded first, asked again when a worker is lost, never twice for one result."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox, Usage
from sleuth.cluster.actor import Failure, Greeting
from sleuth.cluster.episodes import RayEpisodes
from sleuth.cluster.pool import Member, WorkerPool
from sleuth.cluster.worker import BUSY, Reply, WorkerUsage, add, difference
from sleuth.engines.paged.scheduler import EngineStats
from sleuth.errors import ReplayMiss, TrainingStopped, UserError
from sleuth.records import Question, StopReason
from sleuth.retrieval.retriever import NullRetriever

Run = Callable[[int, Task, int], Coroutine[Any, Any, Reply]]


@dataclass(slots=True)
class Remote:
    """A method as Ray's handles have it: `remote` starts a call and returns what to await."""

    call: Run

    def remote(self, attempt: int, task: Task, order: int) -> "Coroutine[Any, Any, Reply]":
        return self.call(attempt, task, order)


@dataclass(slots=True)
class Handle:
    """A worker whose episodes end after some seconds, or with an error."""

    seconds: float = 0.0
    errors: list[BaseException] = field(default_factory=list)
    asked: list[Task] = field(default_factory=list)

    @property
    def run(self) -> Remote:
        return Remote(self._run)

    async def _run(self, attempt: int, task: Task, order: int) -> Reply:
        self.asked.append(task)
        await asyncio.sleep(self.seconds)
        if self.errors:
            raise self.errors.pop()
        usage = WorkerUsage(EngineStats(sampled=3), Usage(calls=1), {}, {BUSY: 0.5})
        return Reply(attempt, task.trajectory(StopReason.ANSWERED), usage)


def episodes_on(*handles: Any, limit: int = 8, patience: float = 60.0) -> RayEpisodes:
    members = [Member(number, handle, Greeting("", 1, None, ())) for number, handle in enumerate(handles)]
    pool = WorkerPool(members, limit)
    for member in members:
        pool.mark_up(member)
    return RayEpisodes(pool, Toolbox(NullRetriever(), 1), patience)


def tasks(groups: int, samples: int = 1) -> list[Task]:
    questions = [Question(f"q{group}", "?", ("",), "") for group in range(groups)]
    return [Task(each, group, sample) for group, each in enumerate(questions) for sample in range(samples)]


def test_trajectories_come_in_the_order_of_the_tasks_and_usage_is_summed() -> None:
    episodes = episodes_on(Handle(), Handle(0.01), limit=2)
    asked = tasks(10)
    found = asyncio.run(episodes.run(asked))
    assert [each.question for each in found] == [each.question for each in asked]
    assert episodes.totals.stats.sampled == 30
    workers = episodes.totals.collect_workers()
    assert sum(used["episodes"] for used in workers.values()) == 10
    assert {number: used[BUSY] / used["episodes"] for number, used in workers.items()} == {0: 0.5, 1: 0.5}
    assert episodes.totals.collect_workers() == {}
    assert episodes.accounts.collect()["finished"] == 10


def test_samples_of_a_question_stay_together() -> None:
    handles = Handle(), Handle()
    asyncio.run(episodes_on(*handles).run(tasks(4, samples=2)))
    groups = [{task.group for task in handle.asked} for handle in handles]
    assert groups == [{0, 2}, {1, 3}]


def test_slow_worker_does_not_hold_the_others() -> None:
    fast, slow = Handle(0.001), Handle(1.0)
    asyncio.run(episodes_on(fast, slow, limit=1).run(tasks(20)))
    assert len(slow.asked) == 1
    assert len(fast.asked) == 19


def test_calls_at_the_same_time_share_the_workers() -> None:
    async def both() -> list[int]:
        episodes = episodes_on(Handle(0.001), limit=1)
        return [len(found) for found in await asyncio.gather(episodes.run(tasks(3)), episodes.run(tasks(4)))]

    assert asyncio.run(both()) == [3, 4]


def test_cancelled_call_frees_its_places() -> None:
    async def cancel() -> RayEpisodes:
        episodes = episodes_on(Handle(60), limit=2)
        call = asyncio.create_task(episodes.run(tasks(5)))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return episodes

    episodes = asyncio.run(cancel())
    assert episodes.accounts.collect() == {"asked": 5, "finished": 0, "retried": 0, "lost": 0, "cancelled": 5}
    assert episodes.pool.claim() is not None


def test_error_of_a_user_in_a_worker_is_raised_here() -> None:
    class Failing(Handle):
        async def _run(self, attempt: int, task: Task, order: int) -> Reply:
            return Reply(attempt, Failure.of(ReplayMiss("searches.jsonl", "who", 3)), WorkerUsage())

    with pytest.raises(UserError, match=r"searches\.jsonl"):
        asyncio.run(episodes_on(Failing()).run(tasks(1)))


def test_run_stops_if_no_worker_returns() -> None:
    episodes = episodes_on(Handle(), patience=0.05)
    episodes.pool.mark_down(episodes.pool.members[0])
    with pytest.raises(TrainingStopped, match=r"cluster\.patience"):
        asyncio.run(episodes.run(tasks(1)))


def test_usage_is_the_difference_of_counters() -> None:
    total = EngineStats(reused=2, sampled=5)
    more = difference(EngineStats(reused=3, sampled=9), total)
    assert (more.reused, more.sampled) == (1, 4)
    add(total, more)
    assert (total.reused, total.sampled) == (3, 9)


@pytest.mark.ray
def test_episodes_of_a_lost_worker_are_asked_again_elsewhere() -> None:
    from ray.exceptions import ActorDiedError

    lost, other = Handle(0.01, [ActorDiedError()]), Handle(0.01)
    episodes = episodes_on(lost, other)
    found = asyncio.run(episodes.run(tasks(2)))
    assert len(found) == 2
    assert len(other.asked) == 2
    assert episodes.accounts.collect() == {"asked": 2, "finished": 2, "retried": 1, "lost": 1, "cancelled": 0}
    assert episodes.pool.current_members() == (episodes.pool.members[1],)
