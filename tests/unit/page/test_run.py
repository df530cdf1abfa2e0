"""The report of a run, whole."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from sleuth.page.run import run_page

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]
HOSTILE = "<script>alert(1)</script><img src='https://a.example/x' onerror=alert(2)>"


def mean(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high, "count": 200}


@pytest.fixture
def report(row: dict[str, Any]) -> dict[str, Any]:
    """Everything a run leaves behind."""
    change = {"before": mean(0.1, 0.06, 0.15), "after": mean(0.85, 0.79, 0.89), "gain": mean(0.75, 0.68, 0.81)}
    return {
        "title": "quickstart, seed 0",
        "manifest": {
            "format": 1,
            "code": "0.1.0",
            "config": {"name": "q", "train": {"steps": 90}},
            "model": {"hash": "ab12"},
        },
        "metrics": [
            {"step": step, "reward/mean": step / 90, "episode/em": step / 90, "policy/gradient_norm": float("nan")}
            for step in range(1, 91)
        ],
        "summary": {
            "em_before": change["before"],
            "em_after": change["after"],
            "em_sampled_before": mean(0.08, 0.05, 0.12),
            "em_sampled_after": mean(0.74, 0.68, 0.8),
            "searches_by_hops": {"1 hop": {"before": 0.1, "after": 1.0}},
            "em_by_hops": {"1 hop": change},
            "ceiling": {"em": mean(0.9, 0.85, 0.94), "by_hops": {}, "what": "the same model after expert traces"},
            "seconds": 185.0,
            "peak_memory_gib": 1.25,
            "steps": 90,
            "tokens": 1_234_567,
        },
        "transcripts": [row],
        "events": [
            {
                "step": 30,
                "guard": "answerless",
                "action": "rollback",
                "value": 0.98,
                "limit": 0.5,
                "sentence": "98% of the episodes have no answer",
            }
        ],
        "parity": {"step": 0, "mean": 2e-7, "maximum": 6e-6, "k3": 2e-13, "tokens": 576, "dtype": "float32"},
    }


def test_the_headline(read: Read, report: dict[str, Any]) -> None:
    _, text = read(run_page(**report))
    for shown in (
        "0.100 → 0.850[0.060, 0.150] → [0.790, 0.890]greedy, 200 held-out questions",
        "0.080 → 0.740",
        "3 min 05 s90 steps",
        "1.25 GiB",
        "1,234,567",
    ):
        assert shown in text


def test_lost_questions_are_said(read: Read, report: dict[str, Any]) -> None:
    report["summary"]["em_before"]["count"] = 199
    report["summary"]["held_out"] = {"questions": 200, "lost": {"before": {"engine_failed": 1}}}
    _, text = read(run_page(**report))
    assert "greedy, 199 → 200 of 200 held-out questions" in text
    assert "in no figure: before, 1 of 200 (engine failed 1)." in text


def test_the_parts(read: Read, report: dict[str, Any]) -> None:
    elements, text = read(run_page(**report))
    for shown in (
        "+0.750 [+0.680, +0.810]",
        "The expert's ceiling: the same model after expert traces",
        "Where was the founder of Velcor born?",
        "30answerlessrolled back0.980.598% of the episodes have no answer",
        "Logprobs of engine and trainer, as last compared at step 0: 2e-07 apart",
        "train.steps90",
        "model.hashab12",
    ):
        assert shown in text
    assert "config.train" not in text
    assert [tag for tag, _ in elements].count("article") == 1


def test_it_is_self_contained(report: dict[str, Any]) -> None:
    page = run_page(**report)
    assert not re.search(r"(src|action|srcset|xlink)\s*=", page)
    anchors = re.findall(r'<section id="(.*?)"', page)
    assert re.findall(r'href="(.*?)"', page) == [f"#{anchor}" for anchor in anchors]
    assert len(set(anchors)) == 7
    assert "http://" not in page
    assert "https://" not in page
    assert "NaN" not in page
    assert "nan," not in page


def hostile(tree: Any) -> Any:
    """The same tree with every string, and every name that may come from outside, turned against the page."""
    match tree:
        case str():
            return tree if tree in ("search", "answer", "malformed", "answered", "rollback") else tree + HOSTILE
        case list():
            return [hostile(each) for each in tree]
        case dict():
            return {key: hostile(each) for key, each in tree.items()}
        case _:
            return tree


def test_nothing_in_a_run_becomes_markup(read: Read, report: dict[str, Any]) -> None:
    plain, _ = read(run_page(**report))
    report = hostile(report)
    report["manifest"]["config"][HOSTILE] = HOSTILE
    report["summary"]["em_by_hops"][HOSTILE] = report["summary"]["em_by_hops"]["1 hop"]
    report["metrics"][0] |= {f"time/{HOSTILE}": 1.0, f"evaluate/em_{HOSTILE}": 0.5}
    elements, text = read(run_page(**report))
    assert {tag for tag, _ in elements} == {tag for tag, _ in plain}
    assert not [name for _, each in elements for name in each if name.startswith("on") or name == "src"]
    assert [each["href"] for _, each in elements if "href" in each] == [
        each["href"] for _, each in plain if "href" in each
    ]
    assert text.count("<script>") > 20


def test_a_run_that_left_nothing_still_has_a_page(read: Read) -> None:
    _, text = read(run_page(title="broken off", manifest={}, metrics=[], summary={}, transcripts=[]))
    assert "– → –" in text
    assert "No values were recorded." in text
