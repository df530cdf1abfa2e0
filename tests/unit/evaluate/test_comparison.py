"""Paired comparison of two evaluations."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sleuth.errors import InputError
from sleuth.evaluate.comparison import as_json, compare, compare_by_kind, markdown
from sleuth.evaluate.results import MEASURES, Evaluation, QuestionResult
from sleuth.records import Question


def results(*rows: tuple[str, float | None]) -> list[QuestionResult]:
    """One result for each (data set, exact match)."""
    return [
        QuestionResult(
            Question(f"q{number}", f"Where is {number}?", ("Oslo",), source),
            "Oslo" if em else "Rome",
            None if em is None else {"em": em, "f1": em, "searches": 1.0 + em},
        )
        for number, (source, em) in enumerate(rows)
    ]


def test_differences_by_set_and_on_the_mean() -> None:
    first = results(*[("nq", 0.0)] * 40, *[("popqa", 1.0)] * 10)
    second = results(*[("nq", 1.0)] * 30, *[("nq", 0.0)] * 10, *[("popqa", 1.0)] * 9, ("popqa", 0.0))
    found = compare(first, second)
    by_set = found.by_set("em")
    assert [by_set[name].gain.value for name in ("nq", "popqa")] == pytest.approx([0.75, -0.1])
    mean, whole = found.mean("em"), found.overall("em")
    assert mean is not None
    assert whole is not None
    assert (mean.first.value, mean.second.value, mean.gain.value) == pytest.approx((0.5, 0.825, 0.325))
    assert 0 < mean.gain.low < 0.325 < mean.gain.high
    assert whole.gain.value == pytest.approx((30 - 1) / 50)
    won, lost = found.changed("em")
    assert (len(won), len(lost)) == (30, 1)
    assert (lost[0].first.answer, lost[0].second.answer) == ("Oslo", "Rome")


def test_interval_of_the_mean_over_sets() -> None:
    """Against the normal approximation: the variance of the mean is the mean variance of the sets over their number."""
    random = np.random.default_rng(0)
    shares = {"a": (2000, 0.5), "b": (500, 0.2), "c": (250, 0.8)}
    first = results(*((name, 0.0) for name, (count, _) in shares.items() for _ in range(count)))
    second = results(
        *((name, float(right)) for name, (count, share) in shares.items() for right in random.random(count) < share)
    )
    gain = compare(first, second).mean("em")
    assert gain is not None
    each = [
        [result.values["em"] for result in second if result.question.data_source == name and result.values]
        for name in shares
    ]
    spread = 1.96 * sum(float(np.var(values)) / len(values) for values in each) ** 0.5 / 3
    assert gain.gain.high - gain.gain.low == pytest.approx(2 * spread, rel=0.1)


def test_unusable_questions_are_excluded() -> None:
    found = compare(results(("nq", 1.0), ("nq", None), ("nq", 0.0)), results(("nq", 1.0), ("nq", 1.0), ("nq", 0.0)))
    assert found.unusable == 1
    whole = found.overall("em")
    assert whole is not None
    assert (whole.gain.count, whole.gain.value) == (2, 0.0)


def test_different_questions_raise_unless_common() -> None:
    first, second = results(("nq", 1.0), ("nq", 0.0)), results(("nq", 1.0), ("nq", 0.0), ("nq", 1.0))
    with pytest.raises(InputError, match=r"0 only in the first, 1 only in the second.*--common"):
        compare(first, second)
    found = compare(first, second, common=True)
    assert (len(found.pairs), found.left_out) == (2, 1)
    assert "1 questions were asked in only one evaluation" in markdown(found, ("a", "b"), "em", 0)


def test_same_id_with_different_answers_raises() -> None:
    first = results(("nq", 1.0))
    other = [replace(first[0], question=replace(first[0].question, golden_answers=("Rome",)))]
    with pytest.raises(InputError, match="question 'q0' of 'nq'"):
        compare(first, other)


def test_no_common_question_raises() -> None:
    with pytest.raises(InputError, match="no question in common"):
        compare(results(("nq", 1.0)), results(("popqa", 1.0)), common=True)


def test_markdown_and_json() -> None:
    first, second = results(*[("nq", 0.0)] * 20, ("popqa", 1.0)), results(*[("nq", 1.0)] * 20, ("popqa", 0.0))
    found = compare(first, second)
    text = markdown(found, ("old", "new"), "em", 2)
    assert "| nq | 20 | 0.000 | 1.000 | **+1.000 [" in text
    assert "## Won by B: 20" in text
    assert text.count("- Where is") == 3
    assert "- Where is 20? (popqa; expected: Oslo) A: Oslo B: Rome" in text
    kept = json.loads(json.dumps(as_json(found, "em")))
    assert kept["sets"]["popqa"]["em"]["gain"]["value"] == -1.0
    assert len(kept["changed"]["won"]) == 20
    assert kept["changed"]["lost"][0]["golden_answers"] == ["Oslo"]


def test_higher_counts_are_not_wins() -> None:
    found = compare(results(("nq", 0.0), ("nq", 1.0)), results(("nq", 1.0), ("nq", 1.0)))
    text = markdown(found, ("old", "new"), "searches", 2)
    assert "## Higher in B: 1" in text
    assert "## Lower in B: 0" in text
    assert "Won" not in text
    kept = as_json(found, "searches")["changed"]
    assert [len(kept[side]) for side in ("higher", "lower")] == [1, 0]


def test_all_measures_are_compared() -> None:
    def measured(value: float) -> list[QuestionResult]:
        question = Question("q", "Where?", ("Oslo",), "nq")
        return [QuestionResult(question, "Oslo", dict.fromkeys(MEASURES, value))]

    kept = as_json(compare(measured(0.0), measured(1.0)), "format")
    assert kept["mean"].keys() == kept["all"].keys() == MEASURES.keys()
    text = markdown(compare(measured(0.0), measured(1.0)), ("old", "new"), "seconds", 0)
    assert all(f"| {label} |" in text for label in MEASURES.values())


def test_equal_counts_have_a_zero_interval() -> None:
    first = [replace(result, values={"em": 0.0, "tokens": 90.0}) for result in results(*[("nq", 0.0)] * 20)]
    assert "| Tokens sampled | 90.000 | 90.000 | +0.000 [+0.000, +0.000] |" in markdown(
        compare(first, first), ("old", "new"), "em", 0
    )


def test_seconds_are_never_bold() -> None:
    first, second = (
        [
            replace(result, values={"em": 0.0, "tokens": value, "seconds": value})
            for result in results(*[("nq", 0.0)] * 20)
        ]
        for value in (9.0, 5.0)
    )
    text = markdown(compare(first, second), ("old", "new"), "em", 0)
    assert "| Tokens sampled | 9.000 | 5.000 | **-4.000 [" in text
    assert "| Seconds | 9.000 | 5.000 | -4.000 [" in text
    by_set = markdown(compare(first, second), ("old", "new"), "seconds", 0)
    assert "| nq | 20 | 9.000 | 5.000 | -4.000 [" in by_set


def test_four_wins_of_four_hundred_are_not_bold() -> None:
    first, second = results(*[("nq", 0.0)] * 400), results(*[("nq", 1.0)] * 4, *[("nq", 0.0)] * 396)
    assert "**" not in markdown(compare(first, second), ("old", "new"), "em", 0)


Make = Callable[..., Evaluation]


def test_gain_is_over_questions_usable_in_both(evaluation: Make) -> None:
    before = evaluation(*[(None, 1, answer, 0) for answer in ("rome", "rome", "oslo", "oslo", None)])
    after = evaluation(*[(None, 1, answer, 1) for answer in ("oslo", "oslo", "oslo", None, "oslo")])
    found = compare(before.results, after.results)
    assert found.gain("em").value == pytest.approx(2 / 3)
    assert found.gain("em").count == 3
    assert found.gain("searches").value == 1.0


def test_comparison_by_kind(evaluation: Make) -> None:
    before = evaluation((None, 1, "rome", 0), (None, 3, None, 0), ("yes_no", 2, "oslo", 0))
    after = evaluation((None, 1, "oslo", 1), (None, 3, "oslo", 3), ("yes_no", 2, "oslo", 2))
    found = compare_by_kind(before, after)
    assert list(found) == ["1 hop", "yes/no"]
    assert found["1 hop"].gain("em").value == 1.0
    assert found["yes/no"].gain("em").count == 1
    assert found["yes/no"].gain("searches").value == 2.0


def test_questions_are_paired_by_position_even_if_ids_repeat() -> None:
    question = Question("same", "Where?", ("Oslo",), "nq")
    first = [QuestionResult(question, None, {"em": value}) for value in (0.0, 1.0)]
    second = [QuestionResult(question, None, {"em": value}) for value in (1.0, 1.0)]
    assert compare(first, second).gain("em").value == 0.5
