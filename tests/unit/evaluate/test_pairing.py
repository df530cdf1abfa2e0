"""Two evaluations compared: what is paired, what is certain, what changed, what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sleuth.errors import InputError
from sleuth.evaluate.marks import Mark
from sleuth.evaluate.pairing import as_json, markdown, paired
from sleuth.records import Question


def marks(*rows: tuple[str, float | None]) -> list[Mark]:
    """A mark for each (set, exact match)."""
    return [
        Mark(
            Question(f"q{number}", f"Where is {number}?", ("Oslo",), source),
            "Oslo" if em else "Rome",
            None if em is None else {"em": em, "f1": em, "searches": 1.0 + em},
        )
        for number, (source, em) in enumerate(rows)
    ]


def test_differences_are_paired_by_set_and_on_the_mean() -> None:
    first = marks(*[("nq", 0.0)] * 40, *[("popqa", 1.0)] * 10)
    second = marks(*[("nq", 1.0)] * 30, *[("nq", 0.0)] * 10, *[("popqa", 1.0)] * 9, ("popqa", 0.0))
    found = paired(first, second)
    by_set = found.by_set("em")
    assert [by_set[name].gain.value for name in ("nq", "popqa")] == pytest.approx([0.75, -0.1])
    mean, whole = found.mean("em"), found.all("em")
    assert mean is not None
    assert whole is not None
    assert (mean.first.value, mean.second.value, mean.gain.value) == pytest.approx((0.5, 0.825, 0.325))
    assert 0 < mean.gain.low < 0.325 < mean.gain.high
    assert whole.gain.value == pytest.approx((30 - 1) / 50)
    won, lost = found.changed("em")
    assert (len(won), len(lost)) == (30, 1)
    assert (lost[0].first.answer, lost[0].second.answer) == ("Oslo", "Rome")


def test_the_interval_of_the_mean_is_that_of_independent_sets() -> None:
    """Against the normal approximation: the variance of the mean is the mean variance of the sets over their number."""
    dice = np.random.default_rng(0)
    shares = {"a": (400, 0.5), "b": (100, 0.2), "c": (50, 0.8)}
    first = marks(*((name, 0.0) for name, (count, _) in shares.items() for _ in range(count)))
    second = marks(
        *((name, float(right)) for name, (count, share) in shares.items() for right in dice.random(count) < share)
    )
    gain = paired(first, second).mean("em")
    assert gain is not None
    each = [
        [mark.values["em"] for mark in second if mark.question.data_source == name and mark.values] for name in shares
    ]
    spread = 1.96 * sum(float(np.var(values)) / len(values) for values in each) ** 0.5 / 3
    assert gain.gain.high - gain.gain.low == pytest.approx(2 * spread, rel=0.1)


def test_a_question_lost_in_one_is_in_no_figure() -> None:
    found = paired(marks(("nq", 1.0), ("nq", None), ("nq", 0.0)), marks(("nq", 1.0), ("nq", 1.0), ("nq", 0.0)))
    assert found.lost == 1
    whole = found.all("em")
    assert whole is not None
    assert (whole.gain.count, whole.gain.value) == (2, 0.0)


def test_different_questions_are_refused_unless_what_is_common_is_wanted() -> None:
    first, second = marks(("nq", 1.0), ("nq", 0.0)), marks(("nq", 1.0), ("nq", 0.0), ("nq", 1.0))
    with pytest.raises(InputError, match=r"0 only in the first, 1 only in the second; .* --common"):
        paired(first, second)
    found = paired(first, second, common=True)
    assert (len(found.pairs), found.left_out) == (2, 1)
    assert "1 questions stand in one evaluation only" in markdown(found, ("a", "b"), "em", 0)


def test_the_same_id_with_other_answers_is_refused() -> None:
    first = marks(("nq", 1.0))
    other = [replace(first[0], question=replace(first[0].question, golden_answers=("Rome",)))]
    with pytest.raises(InputError, match="has another text or other answers"):
        paired(first, other)


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(InputError, match="no question in common"):
        paired(marks(("nq", 1.0)), marks(("popqa", 1.0)), common=True)


def test_on_paper_and_as_json() -> None:
    first, second = marks(*[("nq", 0.0)] * 20, ("popqa", 1.0)), marks(*[("nq", 1.0)] * 20, ("popqa", 0.0))
    found = paired(first, second)
    text = markdown(found, ("old", "new"), "em", 2)
    assert "| nq | 20 | 0.000 | 1.000 | **+1.000 [" in text
    assert "## Won by B: 20" in text
    assert text.count("- Where is") == 3
    assert "- Where is 20? (popqa; right: Oslo) A: Oslo B: Rome" in text
    kept = json.loads(json.dumps(as_json(found, "em")))
    assert kept["sets"]["popqa"]["em"]["gain"]["value"] == -1.0
    assert len(kept["changed"]["won"]) == 20
    assert kept["changed"]["lost"][0]["golden_answers"] == ["Oslo"]
