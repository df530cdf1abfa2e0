"""The result of `sleuth start` in a sentence and on a page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleuth.evaluate.results import QuestionResult
from sleuth.records import Question
from sleuth.start.report import _gain, commands, examples, page, verdict
from sleuth.start.sizes import choose_sizes
from sleuth.start.stages import Stages, StartOptions

ESTIMATE = {"value": 0.5, "low": 0.4, "high": 0.6, "count": 90}


def summary(value: float, low: float, high: float) -> dict[str, Any]:
    return {
        "documents": ["3 documents, 1.2 KiB: 3 .md; languages: 3 en"],
        "questions": {"types": {"definition": 90}, "parts": {"train": 70, "validation": 10, "test": 10}},
        "right": dict.fromkeys(("alone", "rag", "rag-cold-start", "trained"), ESTIMATE),
        "gain": {key: {"value": value, "low": low, "high": high} for key in ("alone", "rag", "rag-cold-start")},
        "recommended": "trained",
        "failed": {"trained": 0},
        "difficulty": {"mean": 0.25, "always_right": 7, "never_right": 3},
        "seconds": {"documents": 1.5},
        "serve": "sleuth serve agent run",
    }


@pytest.mark.parametrize(
    ("gain", "said"),
    [((0.1, 0.02, 0.2), "beats"), ((-0.1, -0.2, -0.01), "worse"), ((0.1, -0.05, 0.2), "does not differ significantly")],
)
def test_the_verdict_follows_the_interval(gain: tuple[float, float, float], said: str) -> None:
    assert verdict(summary(*gain)).count(said) == 2


def test_the_verdict_compares_with_rag_after_the_cold_start() -> None:
    made = summary(0.3, 0.2, 0.4)
    made["gain"]["rag-cold-start"] = {"value": 0.01, "low": -0.02, "high": 0.04}
    assert "beats the same model with RAG: +30.0 points [+20.0, +40.0]" in verdict(made)
    assert "does not differ significantly from RAG after the cold start: +1.0" in verdict(made)


@pytest.mark.parametrize(("high", "served"), [(0.1, "run"), (-0.1, "cold-start --method rag --index")])
def test_the_better_agent_is_served(high: float, served: str, tmp_path: Path) -> None:
    made = summary(-0.1, -0.2, high)
    stages = Stages(StartOptions("docs", "quickstart"), tmp_path, choose_sizes("quickstart"))
    found = commands(stages, made)
    assert found["recommended"] == ("trained" if high > 0 else "rag-cold-start")
    assert f"sleuth ask {tmp_path}/{served}" in found["ask"]
    assert f"sleuth serve agent {tmp_path}/{served}" in found["serve"]


def test_failed_episodes_are_left_out_of_the_gain() -> None:
    question = Question("q", "Who?", ("Ada",), "set")
    questions = [replace(question, id=f"q{number}") for number in range(100)]
    before = [QuestionResult(each, "Ada", {"em": float(number < 80)}) for number, each in enumerate(questions)]
    after = [
        QuestionResult(each, "Ada", {"em": 1.0}) if number < 80 else QuestionResult(each, None, None)
        for number, each in enumerate(questions)
    ]
    gain = _gain(before, after)
    assert (gain.value, gain.count) == (0.0, 80)


def test_the_verdict_names_what_is_recommended_and_what_failed() -> None:
    made = summary(-0.1, -0.2, -0.05) | {"recommended": "rag-cold-start", "failed": {"trained": 3, "rag": 1}}
    assert "use RAG after the cold start instead" in verdict(made)
    assert "4 episodes failed" in verdict(made)


def test_the_page_shows_rows_and_links() -> None:
    html = page(summary(0.1, 0.02, 0.2), {"trained": {}}, [("Who?", "Ada", "✗ Bob", "✓ Ada")])
    for text in ("model with RAG", "evaluations/trained/results.html", "beats", "run/report.html", "3 .md"):
        assert text in html
    for text in ("✗ Bob", "25% of its attempts", "3 never"):
        assert text in html


def test_examples_begin_with_differences() -> None:
    def result(number: int, answer: str, em: float, answerable: bool = True) -> QuestionResult:
        question = Question(f"q{number}", f"Who {number}?", ("Ada",), "set", answerable=answerable)
        return QuestionResult(question, answer, {"em": em})

    rag = [result(0, "Ada", 1), result(1, "Bob", 0), result(2, "Ada", 1, answerable=False)]
    trained = [result(0, "Ada", 1), result(1, "Ada", 1), result(2, "I don't know", 0, answerable=False)]
    assert examples({"rag": rag, "trained": trained}) == [
        ("Who 1?", "Ada", "✗ Bob", "✓ Ada"),
        ("Who 2?", "(none)", "✗ Ada", "✓ I don't know"),
        ("Who 0?", "Ada", "✓ Ada", "✓ Ada"),
    ]
