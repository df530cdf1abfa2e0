"""The best split: balanced, within memory, and refused if nothing fits."""

from typing import Any

import pytest

from sleuth.cluster.recommendation import recommend
from sleuth.errors import ConfigError


def test_gpus_go_where_the_work_is(case: Any) -> None:
    """Training takes three times as long as rollouts: about six of eight GPUs train."""
    rates = case.rates(decode=((1, 100.0), (64, 100.0)), search=0.0, train=130.0)
    scenario = case.scenario(questions=32, trainers=1, rollouts=None)
    found = {
        (each.scenario.mode, each.scenario.rollouts is None): each
        for each in recommend(8, scenario, lambda *_: rates, staleness=2)
    }
    assert set(found) == {("sync", True), ("sync", False), ("ahead", False), ("async", False)}
    best = found["async", False]
    assert (best.scenario.trainers, best.scenario.gpus, best.scenario.staleness) == (6, 8, 2)
    assert best.prediction.trajectories_per_second > found["sync", False].prediction.trajectories_per_second


def test_splits_that_do_not_fit_are_left_out(case: Any) -> None:
    rates = case.rates()
    found = recommend(8, case.scenario(rollouts=None), lambda trainers, _: rates if trainers == 5 else None, 2)
    assert {each.scenario.trainers for each in found} == {5}
    with pytest.raises(ConfigError, match="8"):
        recommend(8, case.scenario(rollouts=None), lambda *_: None, 2)


def test_one_gpu_is_shared(case: Any) -> None:
    (found,) = recommend(1, case.scenario(rollouts=None), lambda *_: case.rates(), 2)
    assert (found.scenario.trainers, found.scenario.rollouts) == (1, None)
