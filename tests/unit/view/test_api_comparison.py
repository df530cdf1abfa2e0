"""Evaluations and comparisons."""

from collections.abc import Callable
from typing import Any

import pytest

from sleuth.evaluate.folder import EvaluationFolder

Evaluate = Callable[..., EvaluationFolder]

BOTH = {"first": "evaluations/a", "second": "evaluations/b"}


def test_evaluation(evaluate: Evaluate, ask: Callable[..., Any]) -> None:
    evaluate("a", ["Ada", "Bob", "Ada", "Ada"])
    found = ask("evaluations")("/api/evaluation", evaluation="evaluations/a").json()
    em = found["results"]["sets"]["library"]["em"]
    assert (em["value"], em["count"]) == (0.75, 4)
    assert em["low"] < 0.75 < em["high"]
    assert next(iter(found["measures"])) == "em"


def test_unfinished_evaluation(evaluate: Evaluate, ask: Callable[..., Any]) -> None:
    (evaluate("a", ["Ada"]).path / "results.json").unlink()
    evaluate("b", ["Ada"])
    get = ask("evaluations")
    assert get("/api/evaluation", evaluation="evaluations/a").json()["results"] is None
    refused = get("/api/compare", **BOTH)
    assert (refused.status_code, "is not finished" in refused.json()["detail"]) == (400, True)


def test_comparison(evaluate: Evaluate, ask: Callable[..., Any]) -> None:
    evaluate("a", ["Ada", "Bob", "Ada", "Bob"])
    evaluate("b", ["Ada", "Ada", "Bob", "Ada"])
    get = ask("evaluations")
    found = get("/api/compare", **BOTH).json()
    assert found["tally"] == {"won": 2, "lost": 1, "same": 1, "unknown": 0}
    assert found["sets"]["library"]["em"]["gain"]["value"] == pytest.approx(0.25)
    assert found["mean"]["em"]["first"]["value"] == 0.5
    won = get("/api/compare", show="won", limit=1, **{**BOTH, "from": 1}).json()
    (row,) = won["rows"]
    assert (won["total"], row["id"], row["change"]) == (2, "q3", "won")
    assert (row["first"]["answer"], row["second"]["answer"], row["second"]["value"]) == ("Bob", "Ada", 1.0)
    opened = get("/api/trajectory", evaluation="evaluations/b", at=row["second"]["at"]).json()
    assert (opened["question_id"], opened["answer"]) == ("q3", "Ada")


def test_comparison_is_recomputed_when_files_change(evaluate: Evaluate, ask: Callable[..., Any]) -> None:
    a, _ = evaluate("a", ["Bob"]), evaluate("b", ["Ada"])
    get = ask("evaluations")
    assert get("/api/compare", **BOTH).json()["tally"]["won"] == 1
    marks = a.path / "marks.jsonl"
    marks.write_text(marks.read_text().replace('"em": 0.0', '"em": 1.0'))
    assert get("/api/compare", **BOTH).json()["tally"]["won"] == 0


def test_different_questions_need_common(evaluate: Evaluate, ask: Callable[..., Any]) -> None:
    evaluate("a", ["Ada", "Ada", "Ada"])
    evaluate("b", ["Ada", "Bob"])
    get = ask("evaluations")
    refused = get("/api/compare", **BOTH)
    assert (refused.status_code, "different questions" in refused.json()["detail"]) == (400, True)
    found = get("/api/compare", common=1, **BOTH).json()
    assert (found["questions"], found["left_out"], found["tally"]["lost"]) == (2, 1, 1)


def test_unknown_measure(evaluate: Evaluate, ask: Callable[..., Any]) -> None:
    evaluate("a", ["Ada"])
    evaluate("b", ["Ada"])
    refused = ask("evaluations")("/api/compare", measure="beauty", **BOTH)
    assert (refused.status_code, "em, f1" in refused.json()["detail"]) == (400, True)
