"""Examinations: greedy and sampled are what they are called, and each rank asks its share."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from sleuth.evaluate.results import Evaluation
from sleuth.evaluate.runner import evaluate
from sleuth.train.held_out import evaluate_held_out, evaluate_twice
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts
from sleuth.train.ranks import Alone
from sleuth.train.rollout import RolloutSchedule

Item = TypeVar("Item")
Making = Callable[..., Parts]


@dataclass(frozen=True)
class Second(Alone):
    """The second of two ranks, of which the first brings nothing."""

    rank: int = 1
    world: int = 2

    def gather(self, mine: Sequence[Item], what: str) -> list[list[Item]]:
        return [[], list(mine)]


def said(found: Evaluation) -> list[tuple[int, ...]]:
    return [each.ids for each in found.trajectories]


def test_questions_are_asked_at_the_temperature_named(parts: Making, tmp_path: Path) -> None:
    made = parts(tmp_path / "run")

    async def expected(temperature: float) -> Evaluation:
        return await evaluate(
            made.agent, made.held_out, made.sampler.rubric, temperature=temperature, step=3, concurrent=4
        )

    with asyncio.Runner() as runner:
        greedy, hot = (said(runner.run(evaluate_held_out(made, temperature, 3))) for temperature in (0.0, 2.0))
        assert greedy == said(runner.run(expected(0.0)))
        assert hot == said(runner.run(expected(2.0)))
    assert greedy != hot


def test_a_measurement_is_greedy_and_sampled(parts: Making, tmp_path: Path) -> None:
    made = parts(tmp_path / "run")
    with RolloutSchedule(made.sampler.collect) as rollouts:
        found = evaluate_twice(made, rollouts, SilentObserver(), 0, "asking")
        greedy, sampled = (said(rollouts.run(evaluate_held_out(made, temperature, 0))) for temperature in (0.0, 1.0))
    assert (said(found.greedy), said(found.sampled)) == (greedy, sampled)
    assert greedy != sampled


def test_a_rank_asks_its_share_of_the_held_out_questions(parts: Making, tmp_path: Path) -> None:
    made = parts(tmp_path / "run")
    second = replace(made, learner=replace(made.learner, ranks=Second()))
    with asyncio.Runner() as runner:
        found = runner.run(evaluate_held_out(second, 0.0, 0))
    assert [each.question for each in found.results] == made.held_out[1::2]
