"""Intervals against published values, independent computations, exact tests and simulated coverage."""

from math import comb

import numpy as np
import pytest

from sleuth.evaluate.statistics import (
    Z,
    clopper_pearson_lower,
    estimate,
    mean_of_means,
    paired_difference,
    paired_mean_of_means,
    sign_interval,
    tango_interval,
)
from sleuth.records import Estimate


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
def test_wilson_coverage(share: float) -> None:
    random = np.random.default_rng(7)
    samples = (random.random((2000, 60)) < share).astype(float)
    held = np.mean([found.low <= share <= found.high for found in map(estimate, samples.tolist())])
    assert 0.93 <= held <= 0.985


def test_bootstrap_coverage() -> None:
    random = np.random.default_rng(8)
    samples = random.poisson(1.5, (300, 80)).astype(float)
    held = np.mean([found.low <= 1.5 <= found.high for found in map(estimate, samples.tolist())])
    assert 0.91 <= held <= 0.98


def test_paired_difference_coverage() -> None:
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


def test_intervals_are_deterministic() -> None:
    values = [0.0, 0.25, 1.0, 3.0]
    assert estimate(values) == estimate(values)
    assert paired_difference(values, values[::-1]) == paired_difference(values, values[::-1])


def test_one_value_has_a_wide_interval() -> None:
    share, count, change = estimate([0.5]), estimate([3.0]), paired_difference([0.0], [1.0])
    assert (share.low, share.high) == pytest.approx((0.025, 0.975))
    assert (count.low, count.high) == pytest.approx((0.0, 3 + 0.95 * 6))
    assert (change.low, change.high) == pytest.approx((-0.95, 1.0))


def test_identical_changes_need_many_questions() -> None:
    few, many = paired_difference([0.0] * 3, [1.0] * 3), paired_difference([0.0] * 60, [1.0] * 60)
    assert few.low < 0 < many.low
    # Tango's limit for 60 of 60
    assert many.low == pytest.approx((60 - 1.959964**2) / (60 + 1.959964**2), abs=1e-5)
    assert many.high == 1.0


def test_no_values_raise() -> None:
    with pytest.raises(ValueError, match="at least one"):
        estimate([])
    with pytest.raises(ValueError, match="at least one"):
        paired_difference([], [])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_values_raise(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        estimate([1.0, value])
    with pytest.raises(ValueError, match="finite"):
        paired_difference([1.0], [value])


def test_pairs_of_different_length_raise() -> None:
    with pytest.raises(ValueError, match="2 values before and 1 after"):
        paired_difference([1.0, 0.0], [1.0])


def test_mean_of_means_coverage() -> None:
    random, shares, sizes = np.random.default_rng(3), (0.2, 0.5, 0.8), (30, 60, 120)
    truth, held = sum(shares) / 3, 0
    for _ in range(200):
        groups = [(random.random(size) < share).astype(float) for share, size in zip(shares, sizes, strict=True)]
        found = mean_of_means([list(map(float, group)) for group in groups])
        held += found.low <= truth <= found.high
    assert 180 <= held <= 199


def test_mean_of_means_of_one_group() -> None:
    assert mean_of_means([[1.0, 0.0, 1.0]]) == estimate([1.0, 0.0, 1.0])
    assert paired_mean_of_means([[0.0, 1.0]], [[1.0, 1.0]]) == paired_difference([0.0, 1.0], [1.0, 1.0])


def test_constant_groups_have_an_interval() -> None:
    found = mean_of_means([[1.0] * 20, [0.0] * 20])
    assert found.value == 0.5
    assert 0.0 < found.low < 0.5 < found.high < 1.0
    same = paired_mean_of_means([[1.0] * 20, [0.0] * 20], [[1.0] * 20, [0.0] * 20])
    assert same.value == 0.0
    assert same.low < 0.0 < same.high
    assert mean_of_means([[5.0], [7.0]]).low >= 0.0


def test_constant_sets_widen_the_interval_next_to_varying_ones() -> None:
    wrong, one_right = [0.0] * 10, [1.0] + [0.0] * 9
    none, one = mean_of_means([wrong] * 7), mean_of_means([wrong] * 6 + [one_right])
    assert none.high == pytest.approx(0.277533 / 7**0.5, abs=1e-6)
    assert one.high > none.high
    # the same for differences and for values between 0 and 1
    alike, differing = [wrong] * 7, [wrong] * 6 + [one_right]
    assert paired_mean_of_means(alike, differing).high > paired_mean_of_means(alike, alike).high
    assert mean_of_means([wrong] * 6 + [[0.5] + [0.0] * 9]).high > 0.9 * none.high


def test_a_set_of_one_question_widens_the_interval() -> None:
    large = [1.0] * 500 + [0.0] * 500
    alone, beside = mean_of_means([large, large]), mean_of_means([large, [1.0]])
    assert beside.high - beside.low > 5 * (alone.high - alone.low)
    assert beside.value - beside.low == pytest.approx((1 - 0.206549) / 2, abs=0.01)


def test_intervals_of_counts_scale_with_the_counts() -> None:
    same = paired_difference([312.0] * 400, [312.0] * 400, proportion=False)
    assert (same.low, same.value, same.high) == (0.0, 0.0, 0.0)
    # one search per question is not a proportion: the next set may have three
    assert estimate([1.0], proportion=False).high == pytest.approx(1 + 0.95 * 2)
    small, large = estimate([2.0] * 30, proportion=False), estimate([2000.0] * 30, proportion=False)
    assert (1000 * small.low, 1000 * small.high) == pytest.approx((large.low, large.high))


def test_multinomial_resampling_matches_index_resampling() -> None:
    """Both ways of resampling draw from the same distribution."""
    values = np.random.default_rng(12).poisson(2.0, 3000).astype(float)
    apart = values + np.arange(3000) * 1e-9  # no two alike
    found, other = estimate(values.tolist()), estimate(apart.tolist())
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.006)


def changed(wins: int, losses: int, count: int) -> Estimate:
    before = [0.0] * wins + [1.0] * losses + [0.0] * (count - wins - losses)
    after = [1.0] * wins + [0.0] * losses + [0.0] * (count - wins - losses)
    return paired_difference(before, after)


def mcnemar(wins: int, losses: int) -> float:
    """Two-sided p-value of McNemar's exact test."""
    tosses = wins + losses
    ways = sum(comb(tosses, each) for each in range(max(wins, losses), tosses + 1))
    return min(1.0, ways * 2.0 / 2.0**tosses)


def test_tango_as_published() -> None:
    """Airway hyper-responsiveness before and after a transplantation (Bentur 2009): 1 and 7 of 21 differ."""
    assert tango_interval(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


@pytest.mark.parametrize(("wins", "losses", "count"), [(5, 0, 41), (7, 1, 21), (40, 20, 160), (3, 3, 50), (0, 0, 30)])
def test_tango_against_a_grid_search(wins: int, losses: int, count: int) -> None:
    """At the limits the score is Z; the nuisance parameter is found by grid search."""
    for limit in tango_interval(wins, losses, count):
        lost = np.linspace(max(0.0, -limit), (1 - limit) / 2, 200_001)[1:-1]
        same = count - wins - losses
        likely = wins * np.log(lost + limit) + losses * np.log(lost) + same * np.log(1 - 2 * lost - limit)
        spread = count * (2 * lost[likely.argmax()] + limit - limit**2)
        assert abs(wins - losses - count * limit) / spread**0.5 == pytest.approx(Z, abs=2e-3)


@pytest.mark.parametrize(
    ("hits", "count", "low"), [(0, 10, 0.0), (1, 10, 0.00253), (7, 10, 0.34755), (10, 10, 0.69150)]
)
def test_clopper_and_pearson(hits: int, count: int, low: float) -> None:
    assert clopper_pearson_lower(hits, count) == pytest.approx(low, abs=1e-5)


def test_clopper_pearson_of_many_trials() -> None:
    assert clopper_pearson_lower(25_000, 50_000) == pytest.approx(0.5 - Z * 0.5 / 50_000**0.5, abs=2e-5)


@pytest.mark.parametrize(
    ("wins", "losses", "count"), [(4, 0, 400), (3, 0, 4), (5, 0, 51_713), (0, 4, 400), (9, 2, 100)]
)
def test_few_wins_are_not_significant(wins: int, losses: int, count: int) -> None:
    found = changed(wins, losses, count)
    assert found.low < 0 < found.high
    assert mcnemar(wins, losses) > 0.05


def test_significance_agrees_with_mcnemars_exact_test() -> None:
    for wins in range(25):
        for losses in range(wins + 1):
            found = changed(wins, losses, 60)
            assert (found.low > 0) == (mcnemar(wins, losses) < 0.05), (wins, losses)


@pytest.mark.parametrize(
    ("won", "lost", "count"), [(0.01, 0.01, 400), (0.03, 0.01, 100), (0.3, 0.2, 60), (0.02, 0.0, 200), (0.5, 0.1, 15)]
)
def test_paired_binary_coverage(won: float, lost: float, count: int) -> None:
    drawn = np.random.default_rng(5).multinomial(count, [won, lost, 1 - won - lost], size=250)
    found = [changed(int(wins), int(losses), count) for wins, losses, _ in drawn]
    assert np.mean([each.low <= won - lost <= each.high for each in found]) >= 0.94


def test_few_differences_of_other_measures_are_not_significant() -> None:
    shares = paired_difference([0.0] * 400, [0.4, 0.5, 0.6, 0.7] + [0.0] * 396)
    counts = paired_difference([100.0] * 400, [150.0, 160.0, 170.0, 150.0] + [100.0] * 396, proportion=False)
    for found in (shares, counts):
        assert found.low < 0 < found.value < found.high
    # one difference does not narrow the interval
    none, one = paired_difference([0.5] * 40, [0.5] * 40), paired_difference([0.5] * 40, [0.7] + [0.5] * 39)
    assert one.low - one.value <= none.low * 0.99
    assert one.high > none.high


def test_sign_interval_is_inside_the_bootstrap_if_all_values_differ() -> None:
    change = np.random.default_rng(6).normal(0.3, 1.0, 2000)
    found = paired_difference([0.0] * 2000, change.tolist(), proportion=False)
    half = Z * change.std() / 2000**0.5
    assert (found.low, found.high) == pytest.approx((change.mean() - half, change.mean() + half), abs=half / 10)
    low, high = sign_interval(change)
    assert found.low < low < high < found.high


def test_four_wins_in_one_of_seven_sets_are_not_significant() -> None:
    same = [0.0] * 57
    found = paired_mean_of_means([same] * 7, [[1.0] * 4 + [0.0] * 53, *[same] * 6])
    assert found.low < 0 < found.high
