"""Asking what an evaluation lacks: each question once, written down as it is answered."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sleuth.agent.batch import run_batch
from sleuth.agent.episode import Agent, Method, Task
from sleuth.agent.speech import TextListener
from sleuth.engines.base import Seat
from sleuth.evaluate.folder import Folder
from sleuth.evaluate.saved import written
from sleuth.records import Trajectory
from sleuth.reward.rubric import Rubric


@dataclass(frozen=True, slots=True)
class Timed:
    """A method that remembers how long each question took, from when it was taken up."""

    method: Method
    seconds: dict[int, float] = field(default_factory=dict)

    async def __call__(self, agent: Agent, task: Task, seat: Seat, hear: TextListener | None) -> Trajectory:
        began = time.monotonic()
        trajectory = await self.method(agent, task, seat, hear)
        self.seconds[task.group] = time.monotonic() - began
        return trajectory


async def ask(
    agent: Agent,
    folder: Folder,
    rubric: Rubric,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    concurrent: int = 128,
    done: Callable[[Trajectory], None] | None = None,
) -> float:
    """Asks every question that has no usable trajectory in the folder; the seconds it took."""
    timed, known, began = Timed(agent.method), folder.places(), time.monotonic()
    tasks = [
        Task(question, group=place, seed=seed, temperature=temperature)
        for place, question in enumerate(folder.questions())
        if place not in known or not known[place].usable
    ]
    with folder.writing() as write:

        def finish(trajectory: Trajectory) -> None:
            usable = trajectory.stop.usable
            score = rubric.score(trajectory.question, trajectory) if usable else None
            write(written(trajectory, score, timed.seconds.pop(trajectory.group)))
            if done is not None:
                done(trajectory)

        await run_batch(replace(agent, method=timed), tasks, concurrent, finish)
    return time.monotonic() - began
