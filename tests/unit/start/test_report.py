"""The result of `sleuth start` in a sentence and on a page."""

from typing import Any

import pytest

from sleuth.start.report import page, verdict

ESTIMATE = {"value": 0.5, "low": 0.4, "high": 0.6, "count": 90}


def summary(value: float, low: float, high: float) -> dict[str, Any]:
    return {
        "documents": ["3 documents, 1.2 KiB: 3 .md; languages: 3 en"],
        "questions": {"types": {"definition": 90}, "parts": {"train": 70, "validation": 10, "test": 10}},
        "em": dict.fromkeys(("alone", "rag", "trained"), ESTIMATE),
        "trained_against_rag": {"value": value, "low": low, "high": high},
        "seconds": {"documents": 1.5},
        "serve": "sleuth serve agent run",
    }


@pytest.mark.parametrize(
    ("gain", "said"),
    [((0.1, 0.02, 0.2), "beats"), ((-0.1, -0.2, -0.01), "worse"), ((0.1, -0.05, 0.2), "cannot be told apart")],
)
def test_the_verdict_follows_the_interval(gain: tuple[float, float, float], said: str) -> None:
    assert said in verdict(summary(*gain))


def test_the_page_shows_rows_and_links() -> None:
    html = page(summary(0.1, 0.02, 0.2), {"trained": {}})
    for text in ("model with RAG", "evaluations/trained/results.html", "beats", "run/report.html", "3 .md"):
        assert text in html
