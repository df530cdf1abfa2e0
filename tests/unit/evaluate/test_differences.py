"""Paired differences: against published limits, an independent computation, exact tests and simulated truth."""

from math import comb

import numpy as np
import pytest

from sleuth.evaluate.differences import least_share, paired_difference, paired_mean_of_means, signs, tango
from sleuth.evaluate.intervals import Z
from sleuth.records import Estimate


def changed(wins: int, losses: int, count: int) -> Estimate:
    before = [0.0] * wins + [1.0] * losses + [0.0] * (count - wins - losses)
    after = [1.0] * wins + [0.0] * losses + [0.0] * (count - wins - losses)
    return paired_difference(before, after)


def mcnemar(wins: int, losses: int) -> float:
    """The exact test: twice the chance of so uneven a toss of coins."""
    tosses = wins + losses
    ways = sum(comb(tosses, each) for each in range(max(wins, losses), tosses + 1))
    return min(1.0, ways * 2.0 / 2.0**tosses)


def test_tango_as_published() -> None:
    """Airway hyper-responsiveness before and after a transplantation (Bentur 2009): 1 and 7 of 21 differ."""
    assert tango(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


@pytest.mark.parametrize(("wins", "losses", "count"), [(5, 0, 41), (7, 1, 21), (40, 20, 160), (3, 3, 50), (0, 0, 30)])
def test_tango_against_a_search_for_the_likeliest_losses(wins: int, losses: int, count: int) -> None:
    """The limits are where the score is Z, with the nuisance share found by trying many."""
    for limit in tango(wins, losses, count):
        lost = np.linspace(max(0.0, -limit), (1 - limit) / 2, 200_001)[1:-1]
        same = count - wins - losses
        likely = wins * np.log(lost + limit) + losses * np.log(lost) + same * np.log(1 - 2 * lost - limit)
        spread = count * (2 * lost[likely.argmax()] + limit - limit**2)
        assert abs(wins - losses - count * limit) / spread**0.5 == pytest.approx(Z, abs=2e-3)


@pytest.mark.parametrize(
    ("hits", "count", "low"), [(0, 10, 0.0), (1, 10, 0.00253), (7, 10, 0.34755), (10, 10, 0.69150)]
)
def test_clopper_and_pearson(hits: int, count: int, low: float) -> None:
    assert least_share(hits, count) == pytest.approx(low, abs=1e-5)


def test_a_share_of_very_many_is_found() -> None:
    assert least_share(25_000, 50_000) == pytest.approx(0.5 - Z * 0.5 / 50_000**0.5, abs=2e-5)


@pytest.mark.parametrize(
    ("wins", "losses", "count"), [(4, 0, 400), (3, 0, 4), (5, 0, 51_713), (0, 4, 400), (9, 2, 100)]
)
def test_few_wins_prove_nothing(wins: int, losses: int, count: int) -> None:
    found = changed(wins, losses, count)
    assert found.low < 0 < found.high
    assert mcnemar(wins, losses) > 0.05


def test_zero_is_excluded_just_where_the_exact_test_excludes_chance() -> None:
    for wins in range(25):
        for losses in range(wins + 1):
            found = changed(wins, losses, 60)
            assert (found.low > 0) == (mcnemar(wins, losses) < 0.05), (wins, losses)


@pytest.mark.parametrize(
    ("won", "lost", "count"), [(0.01, 0.01, 400), (0.03, 0.01, 100), (0.3, 0.2, 60), (0.02, 0.0, 200), (0.5, 0.1, 15)]
)
def test_the_truth_is_held_95_times_in_100(won: float, lost: float, count: int) -> None:
    drawn = np.random.default_rng(5).multinomial(count, [won, lost, 1 - won - lost], size=250)
    found = [changed(int(wins), int(losses), count) for wins, losses, _ in drawn]
    assert np.mean([each.low <= won - lost <= each.high for each in found]) >= 0.94


def test_few_differences_of_other_measures_prove_nothing_either() -> None:
    shares = paired_difference([0.0] * 400, [0.4, 0.5, 0.6, 0.7] + [0.0] * 396)
    counts = paired_difference([100.0] * 400, [150.0, 160.0, 170.0, 150.0] + [100.0] * 396, shares=False)
    for found in (shares, counts):
        assert found.low < 0 < found.value < found.high
    # a difference more leaves no less open than none
    none, one = paired_difference([0.5] * 40, [0.5] * 40), paired_difference([0.5] * 40, [0.7] + [0.5] * 39)
    assert one.low - one.value <= none.low * 0.99
    assert one.high > none.high


def test_where_all_differ_the_signs_add_nothing_to_the_bootstrap() -> None:
    change = np.random.default_rng(6).normal(0.3, 1.0, 2000)
    found = paired_difference([0.0] * 2000, change.tolist(), shares=False)
    half = Z * change.std() / 2000**0.5
    assert (found.low, found.high) == pytest.approx((change.mean() - half, change.mean() + half), abs=half / 10)
    low, high = signs(change)
    assert found.low < low < high < found.high


def test_four_wins_in_one_of_seven_sets_are_no_proof_on_the_mean() -> None:
    same = [0.0] * 57
    found = paired_mean_of_means([same] * 7, [[1.0] * 4 + [0.0] * 53, *[same] * 6])
    assert found.low < 0 < found.high
