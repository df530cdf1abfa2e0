"""Where the episodes of a run take place: in this process, or on the workers of a cluster."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sleuth.agent.conversation import OnText
from sleuth.agent.episode import Runner, run_batch
from sleuth.agent.task import Task
from sleuth.records import Trajectory


class EpisodeRunner(Protocol):
    """Runs the episodes of a run; calls may overlap."""

    async def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """Run the tasks to their end and return their trajectories in the same order."""
        ...


@dataclass(frozen=True, slots=True)
class LocalEpisodes:
    """Runs episodes in this process, at most `concurrency` at a time over all calls; groups drawn first go first.

    `samples` is the number of episodes per group, if a call may have fewer tasks.
    """

    agent: Runner
    concurrency: int
    samples: int = 0
    slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", asyncio.Semaphore(self.concurrency))

    async def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
        first = tasks[0].group * (self.samples or len(tasks)) if tasks else 0
        return await run_batch(_Limited(self.agent, self.slots, first), tasks, self.concurrency)


@dataclass(frozen=True, slots=True)
class _Limited:
    """An agent whose episodes share a limit; `first` is the priority of the first task."""

    agent: Runner
    slots: asyncio.Semaphore
    first: int

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:
        async with self.slots:
            return await self.agent.run(task, self.first + order, on_text)
