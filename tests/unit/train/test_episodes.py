"""Episodes in this process: one limit over all calls, and groups drawn first go first."""

import asyncio
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from sleuth.agent.conversation import OnText
from sleuth.agent.episode import Agent
from sleuth.agent.task import Task
from sleuth.records import StopReason, Trajectory
from sleuth.train.episodes import LocalEpisodes
from sleuth.train.parts import Parts

Making = Callable[..., Parts]


class Counting(Agent):
    """An agent that counts its episodes under way, and notes the priority of each."""

    log: dict[str, Any]

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:
        self.log["running"] += 1
        self.log["most"] = max(self.log["most"], self.log["running"])
        self.log["started"].append((task.group, task.sample, order))
        await asyncio.sleep(0.001)
        self.log["running"] -= 1
        return task.trajectory(StopReason.ANSWERED)


def counting(made: Parts) -> Counting:
    agent = Counting(**{each.name: getattr(made.agent, each.name) for each in fields(Agent) if each.init})
    object.__setattr__(agent, "log", {"running": 0, "most": 0, "started": []})
    return agent


def test_calls_share_one_limit_and_older_groups_go_first(parts: Making, tmp_path: Path) -> None:
    made = parts(tmp_path / "run")
    agent, questions = counting(made), made.sampler.stream.take(0, 3)

    async def work() -> list[list[Trajectory]]:
        episodes = LocalEpisodes(agent, concurrency=4)
        groups = [[Task(each, 7 + place, sample) for sample in range(3)] for place, each in enumerate(questions)]
        return await asyncio.gather(*map(episodes.run, groups))

    found = asyncio.run(work())
    assert [[(each.group, each.sample) for each in group] for group in found] == [
        [(group, sample) for sample in range(3)] for group in (7, 8, 9)
    ]
    assert agent.log["most"] == 4
    assert [group for group, *_ in agent.log["started"]] == sorted(group for group, *_ in agent.log["started"])
    # The priority of an engine's session grows with the position in the question stream.
    assert [order for *_, order in sorted(agent.log["started"])] == list(range(21, 30))


def test_no_tasks_give_no_trajectories(parts: Making, tmp_path: Path) -> None:
    assert asyncio.run(LocalEpisodes(parts(tmp_path / "run").sampler.agent, 2).run([])) == []
