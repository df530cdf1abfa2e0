"""Question results and the figures computed from them."""

from collections.abc import Callable

import pytest

from sleuth.evaluate.results import (
    Evaluation,
    QuestionResult,
    group_by_kind,
    kind_order,
    means,
    question_kind,
    summarize,
)
from sleuth.evaluate.statistics import estimate
from sleuth.records import Question

Make = Callable[..., Evaluation]


@pytest.mark.parametrize(
    ("form", "hops", "expected"),
    [
        ("one_hop", 1, "1 hop"),
        ("three_hop", 3, "3 hops"),
        ("comparison", 2, "comparison"),
        ("yes_no", 2, "yes/no"),
        ("bridge", None, "bridge"),
        ("bridge_comparison", None, "bridge comparison"),
        (None, None, None),
        (None, 2, "2 hops"),
    ],
)
def test_kind(form: str | None, hops: int | None, expected: str | None) -> None:
    assert question_kind(Question("q", "?", ("a",), "nq", type=form, hops=hops)) == expected


def test_kind_order() -> None:
    kinds = ["nq", "yes/no", "3 hops", "not known", "bamboogle", "comparison", "1 hop", "2 hops"]
    expected = ["1 hop", "2 hops", "3 hops", "comparison", "yes/no", "bamboogle", "nq", "not known"]
    assert sorted(kinds, key=kind_order) == expected


def test_binary_searches_have_the_interval_of_a_count() -> None:
    taken = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    question = Question("q", "Who?", ("Ada",), "test")
    found = means([QuestionResult(question, "Ada", {"em": each, "searches": each}) for each in taken])
    assert found["em"] == estimate(taken)
    assert found["searches"] == estimate(taken, proportion=False)
    assert found["searches"] != found["em"]


def test_kinds_add_up_to_all_questions() -> None:
    def results(*kinds: tuple[str | None, int | None]) -> list[QuestionResult]:
        return [
            QuestionResult(Question(f"q{number}", "?", ("a",), "nq", type=form, hops=hops), "a", {"em": 1.0})
            for number, (form, hops) in enumerate(kinds)
        ]

    found = group_by_kind(results((None, None), ("comparison", None), ("bridge", None), (None, 2), (None, None)))
    assert {name: len(part) for name, part in found.items()} == {
        "2 hops": 1,
        "comparison": 1,
        "bridge": 1,
        "not known": 2,
    }
    assert list(found)[-1] == "not known"
    assert summarize(results((None, None)))["kinds"] == {}


def test_means(evaluation: Make) -> None:
    found = evaluation(("one_hop", 1, "oslo", 1), ("one_hop", 1, "oslo fjord", 2), ("one_hop", 1, "rome", 0))
    assert (found.em.value, found.mean("searches").value) == pytest.approx((1 / 3, 1.0))
    assert found.mean("f1").value == pytest.approx((1 + 2 / 3) / 3)
    assert found.mean("f1").low < found.mean("f1").value < found.mean("f1").high


def test_by_kind(evaluation: Make) -> None:
    found = evaluation(
        ("yes_no", 2, "oslo", 1), ("two_hop", 2, "rome", 2), (None, None, "oslo", 0), ("two_hop", 2, None, 1)
    )
    assert {name: (len(part.results), part.unusable) for name, part in found.by_kind().items()} == {
        "2 hops": (2, 1),
        "yes/no": (1, 0),
        "world": (1, 0),
    }


def test_metrics_are_flat(evaluation: Make) -> None:
    found = evaluation(("yes_no", 2, "oslo", 1), ("two_hop", 2, "rome", 2), ("one_hop", 1, None, 0))
    metrics = found.metrics("evaluate")
    assert {
        name: metrics[f"evaluate/{name}"] for name in ("questions", "unusable", "em", "em_yes_no", "em_2_hops")
    } == {
        "questions": 3.0,
        "unusable": 1.0,
        "em": 0.5,
        "em_yes_no": 1.0,
        "em_2_hops": 0.0,
    }
    assert (metrics["evaluate/em_low"], metrics["evaluate/em_high"]) == (found.em.low, found.em.high)
    assert metrics["evaluate/searches_2_hops"] == 2.0
    assert "evaluate/em_1_hop" not in metrics


def test_no_usable_question_has_no_mean(evaluation: Make) -> None:
    found = evaluation(("one_hop", 1, None, 0))
    with pytest.raises(ValueError, match="at least one"):
        _ = found.em
    assert found.metrics("evaluate") == {"evaluate/questions": 1.0, "evaluate/unusable": 1.0}
    assert found.failures() == {"search_unavailable": 1}
