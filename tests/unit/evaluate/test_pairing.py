"""Two evaluations compared: what is paired, what is certain, what changed, what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sleuth.errors import InputError
from sleuth.evaluate.marks import Mark
from sleuth.evaluate.pairing import as_json, markdown, paired
from sleuth.evaluate.results import MEASURES, by_kind
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
    shares = {"a": (2000, 0.5), "b": (500, 0.2), "c": (250, 0.8)}
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


def test_more_of_a_count_is_no_victory() -> None:
    found = paired(marks(("nq", 0.0), ("nq", 1.0)), marks(("nq", 1.0), ("nq", 1.0)))
    text = markdown(found, ("old", "new"), "searches", 2)
    assert "## Higher in B: 1" in text
    assert "## Lower in B: 0" in text
    assert "Won" not in text
    kept = as_json(found, "searches")["changed"]
    assert [len(kept[side]) for side in ("higher", "lower")] == [1, 0]


def test_whatever_is_measured_is_compared() -> None:
    def measured(value: float) -> list[Mark]:
        question = Question("q", "Where?", ("Oslo",), "nq")
        return [Mark(question, "Oslo", dict.fromkeys(MEASURES, value))]

    kept = as_json(paired(measured(0.0), measured(1.0)), "format")
    assert kept["mean"].keys() == kept["all"].keys() == MEASURES.keys()
    text = markdown(paired(measured(0.0), measured(1.0)), ("old", "new"), "seconds", 0)
    assert all(f"| {label} |" in text for label in MEASURES.values())


def test_counts_that_do_not_differ_are_shown_without_width() -> None:
    first = [replace(mark, values={"em": 0.0, "tokens": 90.0}) for mark in marks(*[("nq", 0.0)] * 20)]
    assert "| Tokens sampled | 90.000 | 90.000 | +0.000 [+0.000, +0.000] |" in markdown(
        paired(first, first), ("old", "new"), "em", 0
    )


def test_seconds_are_never_in_bold() -> None:
    first, second = (
        [replace(mark, values={"em": 0.0, "tokens": value, "seconds": value}) for mark in marks(*[("nq", 0.0)] * 20)]
        for value in (9.0, 5.0)
    )
    text = markdown(paired(first, second), ("old", "new"), "em", 0)
    assert "| Tokens sampled | 9.000 | 5.000 | **-4.000 [" in text
    assert "| Seconds | 9.000 | 5.000 | -4.000 [" in text
    by_set = markdown(paired(first, second), ("old", "new"), "seconds", 0)
    assert "| nq | 20 | 9.000 | 5.000 | -4.000 [" in by_set


def test_four_wins_of_four_hundred_are_not_in_bold() -> None:
    first, second = marks(*[("nq", 0.0)] * 400), marks(*[("nq", 1.0)] * 4, *[("nq", 0.0)] * 396)
    assert "**" not in markdown(paired(first, second), ("old", "new"), "em", 0)


def test_kinds_add_up_to_all() -> None:
    def asked(*kinds: tuple[str | None, int | None]) -> list[Mark]:
        return [
            Mark(Question(f"q{number}", "?", ("a",), "nq", type=form, hops=hops), "a", {"em": 1.0})
            for number, (form, hops) in enumerate(kinds)
        ]

    found = by_kind(asked((None, None), ("comparison", None), ("bridge", None), (None, 2), (None, None)))
    assert {name: len(part) for name, part in found.items()} == {
        "2 hops": 1,
        "comparison": 1,
        "bridge": 1,
        "not known": 2,
    }
    assert list(found)[-1] == "not known"
    assert by_kind(asked((None, None))) == {}
