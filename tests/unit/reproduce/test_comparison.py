"""Our figures beside the published ones."""

from typing import Any

import pytest

from sleuth.reproduce.comparison import compare
from sleuth.reproduce.published import PUBLISHED, SETS, Published

PAPER = PUBLISHED["search-r1-grpo-qwen2.5-3b"][0]
MEAN_ONLY = Published("model", 0.25, "source")


def results(**sets: float | None) -> dict[str, Any]:
    """Figures as in results.json; None: all questions of the set failed."""
    parts = {}
    for name, em in sets.items():
        estimate = {} if em is None else {"em": {"value": em, "low": em - 0.05, "high": em + 0.05, "count": 100}}
        parts[name] = {"questions": 100, "unusable": 0, **estimate}
    return {"sets": parts}


def test_rows_are_in_the_order_of_the_paper_and_others_last() -> None:
    rows, mean = compare(results(squad=0.3, musique=0.1, nq=0.4), PAPER)
    assert [row.name for row in rows] == ["nq", "musique", "squad"]
    assert [row.published for row in rows] == [0.421, 0.066, None]
    assert rows[0].difference == pytest.approx(-0.021)
    assert [row.is_inside for row in rows] == [True, True, None]
    assert mean.published is None  # no published figure for squad
    assert mean.questions == 300


@pytest.mark.parametrize(
    ("ours", "inside"), [(0.421, True), (0.471, True), (0.4714, True), (0.473, False), (0.37, False)]
)
def test_whether_the_published_value_is_inside_our_interval(ours: float, inside: bool) -> None:
    assert compare(results(nq=ours), PAPER)[0][0].is_inside is inside


def test_the_mean_of_some_sets_is_compared_with_the_same_sets() -> None:
    _, mean = compare(results(nq=0.4, bamboogle=0.2), PAPER)
    assert mean.ours is not None
    assert mean.ours.value == pytest.approx(0.3)
    assert mean.ours.high - mean.ours.value == pytest.approx(0.05 / 2**0.5)
    assert mean.published == pytest.approx((0.421 + 0.128) / 2)
    assert mean.name == "mean of 2 sets"


def test_a_published_mean_is_compared_only_with_all_sets() -> None:
    assert compare(results(**dict.fromkeys(SETS, 0.3)), MEAN_ONLY)[1].published == 0.25
    assert compare(results(nq=0.3), MEAN_ONLY)[1].published is None
    assert compare(results(**dict.fromkeys(SETS, 0.3)), PAPER)[1].published == PAPER.mean
    assert compare(results(nq=0.3), None)[1].published is None


def test_a_set_whose_questions_all_failed_has_no_figures() -> None:
    rows, mean = compare(results(nq=None, popqa=0.4), PAPER)
    assert rows[0].cells() == ("nq", "100", "–", "0.421", "–", "–")
    assert (mean.ours, mean.difference, mean.is_inside) == (None, None, None)
