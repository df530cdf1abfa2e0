"""Where the limits of the guards lie, by hand numbers."""

import pytest

from sleuth.train.guards import (
    MIN_HISTORY,
    Reading,
    above_limit,
    above_lowest,
    above_median,
    below_best_mean,
    below_first,
)


def test_a_spike_is_held_against_the_median_of_the_window() -> None:
    past = [100.0, 100.0, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert above_median(past, 31.0, 10.0, 5) == Reading(31.0, 30.0, True)
    assert above_median(past, 30.0, 10.0, 5) == Reading(30.0, 30.0, False)
    assert above_median(past, 31.0, 10.0, 8) == Reading(31.0, 45.0, False)


@pytest.mark.parametrize("past", [[], [1.0] * (MIN_HISTORY - 1), [0.0] * MIN_HISTORY])
def test_a_spike_needs_a_usual_size(past: list[float]) -> None:
    assert above_median(past, 1e9, 2.0, 20) is None


def test_a_lasting_change_becomes_usual() -> None:
    past = [1.0] * 10
    verdicts = []
    for _ in range(10):
        reading = above_median(past, 50.0, 20.0, 10)
        assert reading is not None
        verdicts.append(reading.crossed)
        past = [*past, 50.0]
    assert verdicts == [True] * 5 + [False] * 5


def test_entropy_is_held_against_its_first_value() -> None:
    assert below_first([], 0.0, 0.1, 20) is None
    assert below_first([0.5, 9.0], 0.04, 0.1, 20) == Reading(0.04, 0.05, True)
    assert below_first([0.5, 9.0], 0.06, 0.1, 20) == Reading(0.06, 0.05, False)


def test_a_fall_is_of_the_running_mean_from_its_highest() -> None:
    past = [-1.0] * 10 + [-0.2] * 5
    reading = below_best_mean(past, -1.2, 0.5, 5)
    assert reading is not None
    assert reading.value == pytest.approx((4 * -0.2 - 1.2) / 5)
    assert reading.limit == pytest.approx(-0.7)
    assert not reading.crossed
    fallen = below_best_mean([*past, *[-1.2] * 4], -1.2, 0.5, 5)
    assert fallen is not None
    assert fallen.crossed
    assert fallen.value == pytest.approx(-1.2)


def test_one_good_step_at_the_start_is_no_record_to_fall_from() -> None:
    past = [0.0, -1.0, -1.0, -1.0]
    assert below_best_mean(past[:-1], -1.0, 0.1, 20) is None
    reading = below_best_mean(past, -1.0, 0.1, 20)
    assert reading is not None
    assert reading.limit == pytest.approx(-0.9)


def test_a_rise_is_from_the_lowest_so_far() -> None:
    assert above_lowest([], 1.0, 0.5, 20) is None
    assert above_lowest([0.9, 0.1, 0.3], 0.65, 0.5, 20) == Reading(0.65, 0.6, True)
    untrained = above_lowest([0.95, 0.97], 1.0, 0.5, 20)
    assert untrained is not None
    assert not untrained.crossed


def test_a_level_needs_no_past() -> None:
    assert above_limit([], 0.06, 0.05, 20) == Reading(0.06, 0.05, True)
    assert above_limit([1.0], 0.05, 0.05, 20) == Reading(0.05, 0.05, False)
