"""Intervals against known values, and against what they promise: to hold the truth 95 times in 100."""

import numpy as np
import pytest

from sleuth.evaluate.differences import paired_difference, paired_mean_of_means
from sleuth.evaluate.intervals import estimate, mean_of_means


@pytest.mark.parametrize(
    ("right", "asked", "low", "high"),
    [
        # (0.8 + z²/20 ± z sqrt(0.016 + z²/400)) / (1 + z²/10) with z² = 3.841459
        (8, 10, 0.490162, 0.943318),
        (0, 10, 0.0, 0.277533),
        (10, 10, 0.722467, 1.0),
        (50, 100, 0.403832, 0.596168),
        (1, 1, 0.206549, 1.0),
        (0, 1, 0.0, 0.793451),
    ],
)
def test_wilson(right: int, asked: int, low: float, high: float) -> None:
    found = estimate([1.0] * right + [0.0] * (asked - right))
    assert (found.value, found.count) == (right / asked, asked)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.9])
def test_wilson_holds_the_truth_95_times_in_100(share: float) -> None:
    random = np.random.default_rng(7)
    samples = (random.random((2000, 60)) < share).astype(float)
    held = np.mean([found.low <= share <= found.high for found in map(estimate, samples.tolist())])
    assert 0.93 <= held <= 0.985


def test_the_bootstrap_holds_the_truth_95_times_in_100() -> None:
    random = np.random.default_rng(8)
    samples = random.poisson(1.5, (300, 80)).astype(float)
    held = np.mean([found.low <= 1.5 <= found.high for found in map(estimate, samples.tolist())])
    assert 0.91 <= held <= 0.98


def test_paired_differences_hold_the_truth_95_times_in_100() -> None:
    random = np.random.default_rng(9)
    before = random.random((300, 80)) < 0.3
    after = before | (random.random((300, 80)) < 0.5)  # gains 0.5 of the 0.7 that were wrong
    found = [paired_difference(first.tolist(), second.tolist()) for first, second in zip(before, after, strict=True)]
    held = np.mean([each.low <= 0.35 <= each.high for each in found])
    assert 0.91 <= held <= 0.98


def test_pairing_narrows_the_interval() -> None:
    random = np.random.default_rng(10)
    before = random.random(100)
    after = before + 0.1
    found = paired_difference(before.tolist(), (after + random.normal(0, 0.01, 100)).tolist())
    assert 0.09 < found.low < found.value < found.high < 0.11


def test_many_values_agree_with_the_normal_interval() -> None:
    values = np.random.default_rng(11).exponential(2.0, 20_000)
    found = estimate(values.tolist())
    half = 1.96 * values.std() / np.sqrt(values.size)
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=half / 10)


def test_the_same_values_give_the_same_interval() -> None:
    values = [0.0, 0.25, 1.0, 3.0]
    assert estimate(values) == estimate(values)
    assert paired_difference(values, values[::-1]) == paired_difference(values, values[::-1])


def test_one_value_has_a_wide_interval() -> None:
    share, count, change = estimate([0.5]), estimate([3.0]), paired_difference([0.0], [1.0])
    assert (share.low, share.high) == pytest.approx((0.025, 0.975))
    assert (count.low, count.high) == pytest.approx((0.0, 3 + 0.95 * 6))
    assert (change.low, change.high) == pytest.approx((-0.95, 1.0))


def test_agreement_among_few_proves_little_and_among_many_much() -> None:
    few, many = paired_difference([0.0] * 3, [1.0] * 3), paired_difference([0.0] * 60, [1.0] * 60)
    assert few.low < 0 < many.low
    # Tango's limit for 60 of 60
    assert many.low == pytest.approx((60 - 1.959964**2) / (60 + 1.959964**2), abs=1e-5)
    assert many.high == 1.0


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        estimate([])
    with pytest.raises(ValueError, match="at least one"):
        paired_difference([], [])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        estimate([1.0, value])
    with pytest.raises(ValueError, match="finite"):
        paired_difference([1.0], [value])


def test_pairs_need_as_many_of_each() -> None:
    with pytest.raises(ValueError, match="2 values before and 1 after"):
        paired_difference([1.0, 0.0], [1.0])


def test_the_mean_of_groups_holds_the_truth_95_times_in_100() -> None:
    random, shares, sizes = np.random.default_rng(3), (0.2, 0.5, 0.8), (30, 60, 120)
    truth, held = sum(shares) / 3, 0
    for _ in range(200):
        groups = [(random.random(size) < share).astype(float) for share, size in zip(shares, sizes, strict=True)]
        found = mean_of_means([list(map(float, group)) for group in groups])
        held += found.low <= truth <= found.high
    assert 180 <= held <= 199


def test_the_mean_of_one_group_is_that_of_its_values() -> None:
    assert mean_of_means([[1.0, 0.0, 1.0]]) == estimate([1.0, 0.0, 1.0])
    assert paired_mean_of_means([[0.0, 1.0]], [[1.0, 1.0]]) == paired_difference([0.0, 1.0], [1.0, 1.0])


def test_groups_that_agree_leave_room_for_what_was_not_seen() -> None:
    found = mean_of_means([[1.0] * 20, [0.0] * 20])
    assert found.value == 0.5
    assert 0.0 < found.low < 0.5 < found.high < 1.0
    same = paired_mean_of_means([[1.0] * 20, [0.0] * 20], [[1.0] * 20, [0.0] * 20])
    assert same.value == 0.0
    assert same.low < 0.0 < same.high
    assert mean_of_means([[5.0], [7.0]]).low >= 0.0


def test_a_set_that_agrees_leaves_as_much_open_beside_one_that_does_not() -> None:
    wrong, one_right = [0.0] * 10, [1.0] + [0.0] * 9
    none, one = mean_of_means([wrong] * 7), mean_of_means([wrong] * 6 + [one_right])
    assert none.high == pytest.approx(0.277533 / 7**0.5, abs=1e-6)
    assert one.high > none.high
    # the same of differences, and of values between
    alike, differing = [wrong] * 7, [wrong] * 6 + [one_right]
    assert paired_mean_of_means(alike, differing).high > paired_mean_of_means(alike, alike).high
    assert mean_of_means([wrong] * 6 + [[0.5] + [0.0] * 9]).high > 0.9 * none.high


def test_a_set_of_one_question_makes_the_mean_less_certain() -> None:
    large = [1.0] * 500 + [0.0] * 500
    alone, beside = mean_of_means([large, large]), mean_of_means([large, [1.0]])
    assert beside.high - beside.low > 5 * (alone.high - alone.low)
    assert beside.value - beside.low == pytest.approx((1 - 0.206549) / 2, abs=0.01)


def test_counts_have_no_scale_but_their_own() -> None:
    same = paired_difference([312.0] * 400, [312.0] * 400, shares=False)
    assert (same.low, same.value, same.high) == (0.0, 0.0, 0.0)
    # a search each in one set is no share of questions: it may be three in the next
    assert estimate([1.0], shares=False).high == pytest.approx(1 + 0.95 * 2)
    small, large = estimate([2.0] * 30, shares=False), estimate([2000.0] * 30, shares=False)
    assert (1000 * small.low, 1000 * small.high) == pytest.approx((large.low, large.high))


def test_many_values_that_repeat_are_drawn_as_all_values_are() -> None:
    """Counts of each value against places drawn one by one: two ways to the same distribution."""
    values = np.random.default_rng(12).poisson(2.0, 3000).astype(float)
    apart = values + np.arange(3000) * 1e-9  # no two alike
    found, other = estimate(values.tolist()), estimate(apart.tolist())
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.006)
