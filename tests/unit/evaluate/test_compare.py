"""Evaluations compared question by question."""

from collections.abc import Callable

import pytest

from sleuth.evaluate.compare import em_by_hops, gain, searches_by_hops
from sleuth.evaluate.suite import Evaluation

Make = Callable[..., Evaluation]


def test_gain_is_over_questions_usable_both_times(evaluation: Make) -> None:
    before = evaluation(*[(None, 1, answer, 0) for answer in ("rome", "rome", "oslo", "oslo", None)])
    after = evaluation(*[(None, 1, answer, 1) for answer in ("oslo", "oslo", "oslo", None, "oslo")])
    found = gain(before, after)
    assert found.value == pytest.approx(2 / 3)
    assert found.count == 3
    assert gain(before, after, "searches").value == 1.0


def test_by_hops(evaluation: Make) -> None:
    before = evaluation((None, 1, "rome", 0), (None, 3, None, 0), ("yes_no", 2, "oslo", 0))
    after = evaluation((None, 1, "oslo", 1), (None, 3, "oslo", 3), ("yes_no", 2, "oslo", 2))
    found = em_by_hops(before, after)
    assert list(found) == ["1 hop", "yes/no"]
    assert [found["1 hop"][name]["value"] for name in ("before", "after", "gain")] == [0.0, 1.0, 1.0]
    assert found["yes/no"]["gain"]["count"] == 1
    assert searches_by_hops(before, after) == {
        "1 hop": {"before": 0.0, "after": 1.0},
        "yes/no": {"before": 0.0, "after": 2.0},
    }


def test_other_questions_are_not_compared(evaluation: Make) -> None:
    with pytest.raises(ValueError, match="different questions"):
        gain(evaluation((None, 1, "oslo", 0)), evaluation((None, 1, "oslo", 0), (None, 1, "oslo", 0)))
    with pytest.raises(ValueError, match="different questions"):
        gain(evaluation((None, 1, "oslo", 0)), evaluation((None, 2, "oslo", 0)))
