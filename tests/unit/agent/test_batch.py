"""Batches: all episodes, in order, not too many at once, and errors as they are."""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from sleuth.agent.episode import Agent, Task, run_batch
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import InputError, SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Hit, Question, Trajectory

MakesAgent = Callable[..., Agent]


class Busy:
    """A search engine that takes its time, and counts who is there."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.queries: list[str] = []
        self._dice = random.Random(0)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        self.queries += queries
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self._dice.random() / 200)
        self.now -= 1
        return [[] for _ in queries]


def tasks(count: int) -> list[Task]:
    return [Task(Question(f"q{n}", f"number {n}", ("x",), "test"), group=n) for n in range(count)]


@pytest.fixture
def repeating(agent: MakesAgent, tokens: Tokens) -> Callable[[Busy], Agent]:
    """An agent that searches for its question and answers with it."""

    def script(ids: Sequence[int]) -> list[int]:
        text = tokens.decode(ids)
        asked = text.removeprefix("Question: ").partition("?")[0]
        return tokens.encode(f"<answer>{asked}</answer>" if "<information>" in text else f"<search>{asked}</search>")

    return lambda search: agent(engine=ScriptedEngine(script), search=search)


@pytest.mark.parametrize("concurrent", [1, 3, 8, 100])
def test_results_are_in_order_and_at_most_so_many_run_at_once(
    repeating: Callable[[Busy], Agent], concurrent: int
) -> None:
    search = Busy()
    done: list[Trajectory] = []
    trajectories = asyncio.run(run_batch(repeating(search), tasks(20), concurrent, done.append))
    assert [trajectory.answer for trajectory in trajectories] == [f"number {n}" for n in range(20)]
    assert [trajectory.group for trajectory in trajectories] == list(range(20))
    assert search.most == min(concurrent, 20)
    assert sorted(done, key=lambda trajectory: trajectory.group) == trajectories


def test_episodes_are_admitted_in_order(repeating: Callable[[Busy], Agent]) -> None:
    search = Busy()
    asyncio.run(run_batch(repeating(search), tasks(12), 4))
    assert search.queries == [f"number {n}" for n in range(12)]


def test_no_tasks(repeating: Callable[[Busy], Agent]) -> None:
    assert asyncio.run(run_batch(repeating(Busy()), [], 4)) == []


def test_an_error_ends_the_batch_as_itself(repeating: Callable[[Busy], Agent]) -> None:
    """Not as a group of errors, which nobody would catch as what it is."""

    class Burning(Busy):
        async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
            if queries == ["number 5"]:
                raise InputError("the index burns")
            return await super().search(queries, k)

    search = Burning()
    with pytest.raises(InputError, match="the index burns"):
        asyncio.run(run_batch(repeating(search), tasks(20), 3))
    assert len(search.queries) < 10


def test_a_cancelled_batch_is_cancelled(repeating: Callable[[Busy], Agent]) -> None:
    async def main() -> None:
        batch = asyncio.create_task(run_batch(repeating(Busy()), tasks(20), 3))
        await asyncio.sleep(0.005)
        batch.cancel()
        await batch

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
