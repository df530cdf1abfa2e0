"""Many episodes at once."""

import asyncio
from collections.abc import Callable, Sequence

from sleuth.agent.answerer import Runner
from sleuth.agent.episode import Task
from sleuth.records import Trajectory


async def run_batch(
    agent: Runner, tasks: Sequence[Task], concurrent: int, done: Callable[[Trajectory], None] | None = None
) -> list[Trajectory]:
    """Runs the episodes, at most `concurrent` at a time, admitted in the order given; the result is in that order."""
    waiting = iter(enumerate(tasks))
    finished: dict[int, Trajectory] = {}

    async def worker() -> None:
        for order, task in waiting:
            finished[order] = await agent.run(task, order)
            if done is not None:
                done(finished[order])

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrent, len(tasks))):
                group.create_task(worker())
    except BaseExceptionGroup as several:
        # The first ended the others; alone, it is what callers know how to catch.
        raise several.exceptions[0] from several
    return [finished[order] for order in range(len(tasks))]
