"""Figures of abstaining, worked out by hand."""

from typing import Any

import pytest

from sleuth.evaluate.abstention import abstention_figures
from sleuth.evaluate.report import markdown
from sleuth.evaluate.results import MEASURES, Evaluation, QuestionResult, read_results, summarize
from sleuth.page.evaluation_report import evaluation_page
from sleuth.records import Question
from sleuth.reward.answers import exact_match

ABOUT: dict[str, Any] = {"title": "Held out", "stamp": {}, "sample": None, "notes": []}
UNKNOWN = "I don't know"


def result(number: int, answer: str | None, answerable: bool | None = True, *, usable: bool = True) -> QuestionResult:
    golds = () if answerable is False else ("oslo",)
    question = Question(f"q{number}", "Where?", golds, "own", answerable=answerable)
    values = {"em": exact_match(answer, golds), "f1": 0.0, "searches": 1.0} if usable else None
    return QuestionResult(question, answer, values)


# Four answerable: right, wrong, abstained, without an answer. Three unanswerable: two abstained, one guessed.
RESULTS = [
    result(1, "Oslo"),
    result(2, "Bergen"),
    result(3, UNKNOWN, None),
    result(4, None),
    result(5, UNKNOWN, False),
    result(6, "The answer is unknown.", False),
    result(7, "Oslo", False),
    result(8, None, False, usable=False),
]


def test_figures() -> None:
    found = abstention_figures(RESULTS)
    shares = {"rate": (3, 7), "coverage": (3, 7), "precision": (1, 3), "em_answerable": (1, 4), "recall": (2, 3)}
    shares |= {"abstention_precision": (2, 3), "right": (3, 7)}
    assert {name: each.count for name, each in found.items()} == {name: count for name, (_, count) in shares.items()}
    for name, (some, count) in shares.items():
        assert found[name].value == pytest.approx(some / count), name


def test_intervals_are_those_of_proportions() -> None:
    rate = abstention_figures(RESULTS)["rate"]
    assert 0 < rate.low < rate.value < rate.high < 1


def test_nothing_to_report_without_abstentions_and_unanswerable_questions() -> None:
    plain = [result(1, "Oslo"), result(2, "Bergen", None), result(3, None)]
    assert abstention_figures(plain) == {}
    found = summarize(plain, **ABOUT)
    assert "abstention" not in found
    assert "Abstaining" not in markdown(found)
    assert not any("abstain" in name for name in Evaluation(tuple(plain)).metrics("evaluate"))
    assert abstention_figures([result(1, None, False, usable=False)]) == {}


def test_figures_without_questions_are_missing() -> None:
    guesses = abstention_figures([result(1, "Oslo", False)])
    assert set(guesses) == {"rate", "coverage", "precision", "recall", "right"}
    silent = abstention_figures([result(1, UNKNOWN)])
    assert set(silent) == {"rate", "coverage", "em_answerable", "abstention_precision", "right"}


def test_markdown_and_page() -> None:
    found = summarize(RESULTS, **ABOUT)
    text = markdown(found)
    assert "| Abstaining | Mean | Questions |" in text
    assert "| exact match on answerable questions | 0.250 [" in text
    assert "Abstaining" in evaluation_page(found, MEASURES, [], [])


def test_metrics_of_a_run() -> None:
    metrics = Evaluation(tuple(RESULTS)).metrics("evaluate")
    assert metrics["evaluate/abstain_recall"] == pytest.approx(2 / 3)
    assert metrics["evaluate/abstain_recall_low"] < 2 / 3 < metrics["evaluate/abstain_recall_high"]


def test_answerability_survives_the_result_file(tmp_path: Any) -> None:
    from sleuth.evaluate.folder import EvaluationFolder
    from sleuth.evaluate.results import write_results

    write_results(EvaluationFolder(tmp_path), RESULTS)
    (tmp_path / "results.json").write_text("{}")
    again = read_results(tmp_path)
    assert [each.question.answerable for each in again] == [each.question.answerable for each in RESULTS]
    assert abstention_figures(again) == abstention_figures(RESULTS)
