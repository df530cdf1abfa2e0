"""A run that a signal stops: the step under way is dropped, the last one saved, and the resumed run is the same run."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sleuth.agent.conversation import OnText
from sleuth.agent.episode import Agent
from sleuth.agent.task import Task
from sleuth.errors import Interrupted
from sleuth.records import Trajectory
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.run import Run
from sleuth.train.loop import train
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts
from sleuth.train.ranks import cancel_together
from sleuth.train.recovery import newest_checkpoint

Making = Callable[..., Parts]
Item = TypeVar("Item")

UNASKED = {"before": False, "after": False}
TIMED = ("time/", "speed/", "memory/", "search/latency")


class Signalled(Agent):
    """An agent during whose first episode of a step the process gets SIGTERM; the episode would never end."""

    step: int

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:
        if task.step == self.step:
            if order == 0:
                os.kill(os.getpid(), signal.SIGTERM)  # not raise_signal, which is for the thread that calls it
            await asyncio.Event().wait()
        return await Agent.run(self, task, order, on_text)


def signalled(made: Parts, step: int) -> Parts:
    assert isinstance(made.agent, Agent)
    agent = Signalled(**{each.name: getattr(made.agent, each.name) for each in fields(made.agent) if each.init})
    object.__setattr__(agent, "step", step)
    return replace(made, sampler=replace(made.sampler, agent=agent))


class SignalledAt(SilentObserver):
    """An observer that gets SIGINT when a step is recorded or a stage begins."""

    def __init__(self, at: int | str) -> None:
        self._at = at

    def step(self, step: int, metrics: Any) -> None:
        if step == self._at:
            signal.raise_signal(signal.SIGINT)

    def begin(self, stage: str, total: int) -> None:
        if stage == self._at:
            signal.raise_signal(signal.SIGINT)


def recorded(run: Run) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith(TIMED)} for row in run.metrics()]


def weights(run: Run) -> bytes:
    latest = run.latest()
    assert latest is not None
    return (latest / "model.safetensors").read_bytes()


def test_signal_drops_the_rollout_and_saves_the_step_before(parts: Making, tmp_path: Path, judged: str) -> None:
    tables: dict[str, Any] = {"reward": {"answer": judged}, "evaluate": UNASKED, "train": {"steps": 4, "save_every": 9}}
    whole = parts(tmp_path / "whole", **tables)
    train(whole, SilentObserver(), 0.0)
    cut = signalled(parts(tmp_path / "cut", **tables), step=3)
    with pytest.raises(Interrupted) as interrupted, INTERRUPTION.handle_signals():
        train(cut, SilentObserver(), 0.0)
    assert interrupted.value.code == 143
    assert [path.name for path in cut.run.checkpoints()] == ["step-0", "step-2"]
    assert [row["step"] for row in cut.run.metrics()] == [0, 1, 2]
    train(parts(tmp_path / "cut", **tables), SilentObserver(), 0.0)
    assert recorded(cut.run) == recorded(whole.run)
    assert weights(cut.run) == weights(whole.run)


def test_signal_in_a_step_lets_it_be_finished(parts: Making, tmp_path: Path, judged: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": judged}, evaluate=UNASKED, train={"steps": 9, "save_every": 9})
    with pytest.raises(Interrupted) as interrupted, INTERRUPTION.handle_signals():
        train(made, SignalledAt(1), 0.0)
    assert interrupted.value.code == 130
    assert [path.name for path in made.run.checkpoints()] == ["step-0", "step-1"]


@pytest.mark.parametrize("step", [1, 3])
def test_episodes_sampled_ahead_are_dropped_too(step: int, parts: Making, tmp_path: Path, judged: str) -> None:
    settings = {"mode": "ahead", "steps": 9, "save_every": 9}
    made = parts(
        tmp_path / "run",
        reward={"answer": judged},
        evaluate=UNASKED,
        train=settings,
        algorithm={"correction": {"level": "token"}},
    )
    with pytest.raises(Interrupted), INTERRUPTION.handle_signals():
        train(signalled(made, step), SilentObserver(), 0.0)
    assert max(row["step"] for row in made.run.metrics()) == step - 1
    assert made.run.latest() == made.run.checkpoint(step - 1)


@pytest.mark.parametrize("stage", ["before", "after"])
def test_signal_ends_an_evaluation_before_or_after_training(
    stage: str, parts: Making, tmp_path: Path, judged: str
) -> None:
    made = parts(tmp_path / "run", reward={"answer": judged}, train={"steps": 1})
    with pytest.raises(Interrupted), INTERRUPTION.handle_signals():
        train(made, SignalledAt(f"evaluating {stage} training"), 0.0)
    assert [path.name for path in made.run.checkpoints()] == {"before": [], "after": ["step-0", "step-1"]}[stage]


class Two:
    """This rank and one that brings what it is told to."""

    rank, world = 0, 2

    def __init__(self, theirs: object) -> None:
        self._theirs = theirs

    def gather(self, mine: Sequence[Item], what: str) -> list[list[Any]]:
        return [list(mine), [self._theirs]]

    def barrier(self, what: str) -> None:
        """Not used."""

    def for_thread(self) -> "Two":
        return self

    def close(self) -> None:
        """Not used."""


class Second:
    """The second rank, which hears what the first brings."""

    rank, world = 1, 2

    def __init__(self, first: object) -> None:
        self._first = first

    def gather(self, mine: Sequence[Item], what: str) -> list[list[Any]]:
        return [[self._first], list(mine)]

    def barrier(self, what: str) -> None:
        """Not used."""

    def for_thread(self) -> "Second":
        return self

    def close(self) -> None:
        """Not used."""


def test_every_rank_resumes_from_the_checkpoint_that_the_first_finds(parts: Making, tmp_path: Path) -> None:
    """The first may just have given one its name back that was stepping aside when the run was killed."""
    made = parts(tmp_path / "run")
    made.run.checkpoint(1).mkdir(parents=True)
    assert newest_checkpoint(made) == made.run.checkpoint(1)
    second = replace(made.learner, ranks=Second(made.run.checkpoint(2)))
    assert newest_checkpoint(replace(made, learner=second)) == made.run.checkpoint(2)


def test_ranks_stop_together_whichever_got_the_signal() -> None:
    async def work() -> str:
        return "done"

    with INTERRUPTION.handle_signals(), INTERRUPTION.defer():
        assert asyncio.run(cancel_together(work(), Two(None))) == "done"
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancel_together(work(), Two(signal.SIGTERM)))
        with pytest.raises(Interrupted) as interrupted:
            INTERRUPTION.raise_if_interrupted()
        assert interrupted.value.code == 143
