"""What ends a run, and with which words."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan

import pytest

from sleuth.errors import TrainingStopped
from sleuth.records import StopReason, Trajectory
from sleuth.train import guards

Maker = Callable[..., Trajectory]


def test_failed_searches_end_the_run_only_above_the_limit(trajectory: Maker) -> None:
    step = [trajectory(stop=StopReason.SEARCH_UNAVAILABLE), *[trajectory()] * 3]
    guards.episodes(step, search_failures=0.25)
    with pytest.raises(TrainingStopped, match="25% of the episodes were lost to failed searches, more than 24%"):
        guards.episodes(step, search_failures=0.24)


@pytest.mark.parametrize("stop", [StopReason.ENGINE_FAILED, StopReason.SEARCH_UNAVAILABLE])
def test_nothing_to_learn_from_ends_the_run(stop: StopReason, trajectory: Maker) -> None:
    with pytest.raises(TrainingStopped, match=rf"no episode was usable \(2 {stop.value}\)"):
        guards.episodes([trajectory(stop=stop)] * 2, search_failures=1.0)


def test_the_cause_of_a_failure_is_told(trajectory: Maker) -> None:
    lost = replace(trajectory(stop=StopReason.SEARCH_UNAVAILABLE), failure="no answer for the query 'x': refused")
    with pytest.raises(TrainingStopped, match=r"for example: no answer for the query 'x': refused; mend the search"):
        guards.episodes([trajectory(), lost], search_failures=0.1)
    with pytest.raises(TrainingStopped, match=r"no episode was usable .*for example: no answer for the query"):
        guards.episodes([lost], search_failures=1.0)


@pytest.mark.parametrize("value", [nan, inf])
def test_metric_that_is_no_number_ends_the_run_by_name(value: float) -> None:
    guards.metrics({"reward/mean": 0.0})
    with pytest.raises(TrainingStopped, match=r"policy/surprise is (nan|inf); mend the function it comes from"):
        guards.metrics({"reward/mean": 0.0, "policy/surprise": value})


def test_gradient_that_is_a_number_passes() -> None:
    guards.gradient(1e30)
