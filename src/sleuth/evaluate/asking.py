"""Asking what an evaluation lacks: each question once, written down as it is answered."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sleuth.agent.answerer import Runner
from sleuth.agent.batch import run_batch
from sleuth.agent.episode import Task
from sleuth.agent.speech import TextListener
from sleuth.errors import InputError
from sleuth.evaluate.folder import Folder
from sleuth.evaluate.saved import written
from sleuth.records import Outcome, StopReason, Trajectory
from sleuth.reward.rubric import Rubric

# Questions after which no more are asked: that lost their search before any had one, or in a row to the engine.
HOPELESS = 50
BREAKS = (StopReason.ENGINE_FAILED, StopReason.FUNCTION_FAILED)
BETWEEN = 1.0  # seconds after which the time spent is written down again


@dataclass(frozen=True, slots=True)
class Timed:
    """An agent that remembers how long each question took, from when it was taken up."""

    agent: Runner
    seconds: dict[int, float] = field(default_factory=dict)

    async def run(self, task: Task, order: int = 0, hear: TextListener | None = None) -> Trajectory:
        began = time.monotonic()
        trajectory = await self.agent.run(task, order, hear)
        self.seconds[task.group] = time.monotonic() - began
        return trajectory


@dataclass(slots=True)
class Clock:
    """The time that asking took, written down along the way, so that a kill loses a second of it."""

    folder: Folder
    earlier: float
    began: float = field(default_factory=time.monotonic)
    written: float = 0.0

    @classmethod
    def of(cls, folder: Folder) -> "Clock":
        return cls(folder, folder.seconds() or 0.0)

    @property
    def spent(self) -> float:
        return time.monotonic() - self.began

    def tick(self) -> None:
        if self.spent - self.written >= BETWEEN:
            self.write()

    def write(self) -> None:
        self.written = self.spent
        self.folder.write_seconds(self.earlier + self.written)


@dataclass(slots=True)
class Hope:
    """Circuit breaker: ends the asking where the first searches all fail, or the engine or a function does in a row."""

    found: bool = False
    failed: int = 0
    broken: int = 0  # in a row

    def see(self, trajectory: Trajectory) -> None:
        self.broken = self.broken + 1 if trajectory.stop in BREAKS else 0
        if self.broken >= HOPELESS:
            raise InputError(
                f"{self.broken} questions in a row were lost ({trajectory.failure}); mend what failed and give the "
                "same command again: what was answered stays"
            )
        self.found |= any(turn.outcome is Outcome.FOUND or turn.hits for turn in trajectory.turns)
        self.failed += trajectory.stop is StopReason.SEARCH_UNAVAILABLE
        if not self.found and self.failed >= HOPELESS:
            raise InputError(
                f"the searches of the first {self.failed} questions all failed ({trajectory.failure}); mend what is "
                "searched and give the same command again: what was answered stays"
            )


async def ask(
    agent: Runner,
    folder: Folder,
    rubric: Rubric,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    concurrent: int = 128,
    done: Callable[[Trajectory], None] | None = None,
) -> float:
    """Asks every question that has no usable trajectory in the folder; the seconds it took."""
    timed, known, clock, hope = Timed(agent), folder.places(), Clock.of(folder), Hope()
    tasks = [
        Task(question, group=place, seed=seed, temperature=temperature)
        for place, question in enumerate(folder.questions())
        if place not in known or not known[place].usable
    ]
    with folder.writing() as write:

        def finish(trajectory: Trajectory) -> None:
            trajectory, score = rubric.scored(trajectory)
            write(written(trajectory, score, timed.seconds.pop(trajectory.group)))
            clock.tick()
            if done is not None:
                done(trajectory)
            hope.see(trajectory)

        try:
            await run_batch(timed, tasks, concurrent, finish)
        finally:
            clock.write()
    return clock.spent
