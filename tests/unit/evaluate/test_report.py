"""Markdown and HTML reports of an evaluation."""

from typing import Any

import pytest

from sleuth.evaluate.report import markdown
from sleuth.evaluate.results import MEASURES, QuestionResult, summarize
from sleuth.page.evaluation_report import evaluation_page
from sleuth.records import Question

ABOUT: dict[str, Any] = {"title": "Held out", "stamp": {"model": {"sha256": "abc"}}, "sample": None, "notes": []}


def result(source: str, number: int, em: float | None, hops: int | None = None, **more: float) -> QuestionResult:
    question = Question(f"q{number}", "Where?", ("oslo",), source, hops=hops)
    values = {"em": em, "f1": em, "cover_em": em, "searches": 1.0, "tokens": 120.0, **more}
    return QuestionResult(
        question, "oslo", None if em is None else {name: float(value or 0) for name, value in values.items()}
    )


def test_markdown_by_set() -> None:
    found = summarize(
        [result("nq", 1, 1.0), result("nq", 2, 0.0), result("a|b", 3, 1.0), result("a|b", 4, None)], **ABOUT
    )
    lines = markdown(found).splitlines()
    assert lines[0] == "# Held out"
    assert lines[2] == "| Set | Questions | EM | F1 | Cover EM | Searches | Tokens sampled | Unusable |"
    assert lines[4].startswith("| nq | 2 | 0.500 [0.095, 0.905] | 0.500 [0.095, 0.905] | ")
    assert lines[4].endswith("| 1.00 | 120.0 | 0 |")
    assert lines[5].startswith("| a\\|b | 2 | 1.000")
    assert lines[6].startswith("| mean over the sets | 4 | 0.750 [")
    assert lines[7].startswith("| all | 4 | 0.667 [")
    assert lines[7].endswith("| 1 |")
    assert "Kind" not in markdown(found)


def test_markdown_by_kind() -> None:
    found = summarize([result("world", 1, 1.0, hops=1), result("world", 2, 0.0, hops=2)], **ABOUT)
    text = markdown(found)
    assert "| Kind | Questions |" in text
    assert "| 2 hops | 1 | 0.000 [0.000, 0.793] |" in text
    assert "| mean over the sets" not in text


def test_mean_is_over_sets() -> None:
    found = summarize([*(result("big", n, 1.0) for n in range(9)), result("small", 9, 0.0)], **ABOUT)
    assert found["mean"]["em"]["value"] == pytest.approx(0.5)
    assert found["em"]["value"] == pytest.approx(0.9)
    assert found["mean"]["em"]["low"] < 0.5 < found["mean"]["em"]["high"]


def test_no_mean_over_sets_if_a_set_has_none() -> None:
    found = summarize([result("nq", 1, 1.0), result("popqa", 2, None)], **ABOUT)
    assert found["mean"] == {}
    assert "| mean over the sets | 2 | – |" in markdown(found)
    assert "| popqa | 1 | – |" in markdown(found)


def test_notes() -> None:
    sample = {"limit": 1, "of": 9, "seed": 0, "sentence": "Sample: 1 of 9 questions."}
    about = {**ABOUT, "sample": sample, "notes": ["nq has 1 questions."], "unjudged": 2}
    text = markdown(summarize([result("nq", 1, 1.0, judge=1.0)], **about))
    for words in ("Sample: 1 of 9", "nq has 1 questions.", "no verdict on 2 questions", "| Judge |"):
        assert words in text


def test_page_is_self_contained_and_shows_the_stamp() -> None:
    found = summarize([result("nq", 1, 1.0), result("<b>", 2, 0.0, hops=2)], **ABOUT)
    page = evaluation_page(found, MEASURES, ["A <note>"], [])
    assert "<h1>Held out</h1>" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "A &lt;note&gt;" in page
    assert "model.sha256" in page
    assert "src=" not in page
