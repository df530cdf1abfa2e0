"""The report of a training run."""

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from sleuth.page.document import joined
from sleuth.page.run_report import (
    change_charts,
    change_table,
    changes,
    curves,
    guard_events,
    guard_markers,
    loss_notes,
    question_count,
    rollout_workers,
    run_page,
    timing,
)
from sleuth.records import Estimate

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]
PARITY = {
    "step": 40,
    "mean": 2e-7,
    "maximum": 6.3e-6,
    "k3": 1.8e-13,
    "tokens": 576,
    "dtype": "float32",
    "device": "cpu",
}
TIMES = [
    {"step": 0, "evaluate/em": 0.1},
    {
        "step": 1,
        "time/generate": 3.0,
        "time/train": 1.0,
        "time/step": 5.0,
        "speed/tokens": 1000.0,
        "memory/gpu_gib": 10.0,
    },
    {
        "step": 2,
        "time/generate": 5.0,
        "time/train": 2.0,
        "time/step": 7.0,
        "speed/tokens": 3000.0,
        "memory/gpu_gib": 12.0,
    },
    {"step": 3, "time/generate": float("nan"), "time/unknown": 9.0, "speed/mfu": 0.5123},
]
HOSTILE = "<script>alert(1)</script><img src='https://a.example/x' onerror=alert(2)>"


def mean(value: float, low: float, high: float, count: int = 50) -> dict[str, float]:
    return asdict(Estimate(value, low, high, count))


@pytest.fixture
def summary() -> dict[str, Any]:
    return {
        "em_before": mean(0.1, 0.05, 0.2, 100),
        "em_after": mean(0.8, 0.7, 0.9, 100),
        "em_by_hops": {
            "1 hop": {
                "before": mean(0.2, 0.1, 0.3),
                "after": mean(0.9, 0.8, 0.95),
                "gain": mean(0.7, 0.6, 0.8),
            },
            "3 hops": {
                "before": mean(0.0, 0.0, 0.1),
                "after": mean(0.1, 0.0, 0.2),
                "gain": mean(0.1, -0.05, 0.2),
            },
            "yes/no": {
                "before": mean(0.5, 0.4, 0.6),
                "after": mean(0.3, 0.2, 0.4),
                "gain": mean(-0.2, -0.3, -0.1),
            },
        },
        "searches_by_hops": {"1 hop": {"before": 0.25, "after": 1.0625}, "3 hops": {"before": 0, "after": 2}},
        "ceiling": {
            "em": mean(0.85, 0.8, 0.9),
            "by_hops": {"1 hop": mean(0.95, 0.9, 1.0)},
            "what": "trained on traces",
        },
    }


def test_changes_by_kind(summary: dict[str, Any]) -> None:
    found = changes(summary)
    assert [change.kind for change in found] == ["1 hop", "3 hops", "yes/no", "all"]
    assert found[0].ceiling == Estimate(0.95, 0.9, 1.0, 50)
    assert found[1].ceiling is None
    assert found[3].after == Estimate(0.8, 0.7, 0.9, 100)


def test_table_row(read: Read, summary: dict[str, Any]) -> None:
    _, text = read(change_table(changes(summary)[:1]))
    assert text.endswith(
        "1 hop" + "50" + "0.200 [0.100, 0.300]" + "0.900 [0.800, 0.950]" + "+0.700 [+0.600, +0.800]"
        "0.950 [0.900, 1.000]" + "0.25" + "1.06"
    )


@pytest.mark.parametrize(
    ("counts", "asked", "shown"),
    [
        ((100, 100), 100, "100"),
        ((100, 100), None, "100"),
        ((99, 98), 100, "99 → 98 of 100"),
        ((98, 98), 100, "98 → 98 of 100"),
        ((99, 98), None, "99 → 98"),
        ((None, 98), 100, "98 of 100"),
        ((None, None), 100, ""),
    ],
)
def test_question_count(counts: tuple[int | None, ...], asked: int | None, shown: str) -> None:
    before, after = (None if count is None else Estimate(0.5, 0.4, 0.6, count) for count in counts)
    assert question_count(before, after, asked) == shown


def test_loss_notes(summary: dict[str, Any]) -> None:
    assert loss_notes(summary) == []
    summary["held_out"] = {
        "questions": 100,
        "lost": {"before": {"search_unavailable": 1}, "sampled_after": {"engine_failed": 2, "search_unavailable": 1}},
        "kinds_without_pairs": ["yes/no"],
    }
    summary["em_gain"] = mean(0.7, 0.6, 0.8, 99)
    assert loss_notes(summary) == [
        "Failed questions, excluded from all figures: before, 1 of 100 (search unavailable 1); "
        "sampled after, 3 of 100 (engine failed 2, search unavailable 1).",
        "The gain is over the 99 questions that were usable both times.",
        "Kinds without a question that was usable both times: yes/no.",
    ]


def test_significant_gains_are_bold(read: Read, summary: dict[str, Any]) -> None:
    elements, _ = read(change_table(changes(summary)))
    assert [attributes["class"] for tag, attributes in elements if tag == "strong"] == ["good", "bad"]


def test_no_ceiling(read: Read, summary: dict[str, Any]) -> None:
    summary["ceiling"] = None
    found = changes(summary)
    assert "ceiling" not in (change_table(found) + change_charts(found)).lower()


def test_an_empty_summary_is_shown_as_absent(read: Read) -> None:
    found = changes({})
    assert read(change_table(found))[1].endswith("all" + "–" * 6)
    assert "No values were recorded." in read(change_charts(found))[1]


def event(step: int, guard: str, action: str, value: float | None = 0.98, limit: float | None = 0.5) -> dict[str, Any]:
    sentence = f"{guard} at {step}"
    return {"step": step, "guard": guard, "action": action, "value": value, "limit": limit, "sentence": sentence}


def test_guard_events(read: Read) -> None:
    events = [event(7, "answerless", "rollback"), event(12, "non_finite", "skip", None, None)]
    elements, text = read(joined(guard_events(events, None)))
    assert "7answerlessrolled back0.980.5answerless at 7" in text
    assert "12non finitestep skipped––non_finite at 12" in text
    assert [each.get("class") for tag, each in elements if tag == "span"] == ["bad", None]


def test_repeated_events_are_merged(read: Read) -> None:
    steps = [(3, "entropy"), (3, "parity"), (4, "entropy"), (5, "entropy"), (7, "entropy")]
    elements, text = read(joined(guard_events([event(step, name, "warn") for step, name in steps], None)))
    assert [tag for tag, _ in elements].count("tr") == 1 + 3
    assert "3–5entropywarned0.980.5entropy at 5" in text
    assert "7entropywarned" in text


def test_a_step_rolled_back_twice_has_two_rows(read: Read) -> None:
    elements, _ = read(joined(guard_events([event(2, "malformed", "rollback")] * 2, None)))
    assert [tag for tag, _ in elements].count("tr") == 1 + 2


def test_no_events_and_parity(read: Read) -> None:
    _, text = read(joined(guard_events([], PARITY)))
    assert "No guard was triggered." in text
    assert "at step 40: mean 2e-07, maximum 6.3e-06 (k3 1.8e-13, 576 tokens, float32, cpu)." in text


def test_guard_markers_on_the_curves(read: Read) -> None:
    rows = [{"step": step, "reward/mean": 0.5, "time/step": 1.0} for step in range(1, 11)]
    lasting = [event(step, "answerless", "warn") for step in (4, 5, 6)]
    events = [event(4, "malformed", "rollback"), *lasting, event(40, "entropy", "warn")]
    elements, text = read(curves(rows, {}, None, guard_markers(events)))
    drawn = [each["d"] for _, each in elements if each.get("class") == "mark-line"]
    assert drawn == ["M166.67,10V190m-4,0h8l-4,-7z"]
    assert "step 4: malformed, answerless" in text


def test_timing_of_the_parts_of_a_step(read: Read) -> None:
    _, text = read(joined(timing(TIMES)))
    assert "generating episodes467%forward and backward1.525%whole step6100%" in text
    assert "unknown" not in text


def test_mean_speeds_and_peak_memory(read: Read) -> None:
    _, text = read(joined(timing(TIMES)))
    assert "tokens per second2,000" in text
    assert "(6N per token)0.512" in text
    assert "peak memory in GiB, gpu12" in text


def test_waiting_of_an_asynchronous_run(read: Read) -> None:
    waiting = {"time/step": 10.0, "time/waiting_for_rollouts": 4.0, "time/rollouts_waiting": 1.0, "time/episodes": 9.0}
    _, text = read(joined(timing([{"step": 1, **waiting, "buffer/size": 3.0}])))
    for shown in ("trainer waits for rollouts40%", "rollouts wait for the trainer10%", "wait for a later step3"):
        assert shown in text
    _, text = read(joined(timing([{"step": 1, **waiting}])))
    assert "waits" not in text


def test_rollout_workers(read: Read) -> None:
    row = {"cluster/busy": 0.75, "cluster/idle": 0.25, "cluster/asked": 20.0, "cluster/workers_lost": 1.0}
    tags, text = read(joined(rollout_workers([{"step": 0}, {"step": 1, **row}, {"step": 2, **row}])))
    assert "episodes asked40" in text
    assert "workers lost2" in text
    assert "episodes retried0" in text
    assert any(tag == "svg" for tag, _ in tags)


def test_parts_without_step_time_have_no_share(read: Read) -> None:
    _, text = read(joined(timing([{"step": 1, "time/train": 2.0}])))
    assert "forward and backward2–" in text


def test_no_times(read: Read) -> None:
    _, text = read(joined(timing([{"step": 1}])))
    assert text == "No times were recorded."


@pytest.fixture
def report(row: dict[str, Any]) -> dict[str, Any]:
    """Arguments of run_page."""
    change = {
        "before": mean(0.1, 0.06, 0.15, 200),
        "after": mean(0.85, 0.79, 0.89, 200),
        "gain": mean(0.75, 0.68, 0.81, 200),
    }
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
            "em_sampled_before": mean(0.08, 0.05, 0.12, 200),
            "em_sampled_after": mean(0.74, 0.68, 0.8, 200),
            "searches_by_hops": {"1 hop": {"before": 0.1, "after": 1.0}},
            "em_by_hops": {"1 hop": change},
            "ceiling": {"em": mean(0.9, 0.85, 0.94, 200), "by_hops": {}, "what": "the same model after expert traces"},
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


def test_headline(read: Read, report: dict[str, Any]) -> None:
    _, text = read(run_page(**report))
    for shown in (
        "0.100 → 0.850[0.060, 0.150] → [0.790, 0.890]greedy, 200 held-out questions",
        "0.080 → 0.740",
        "3 min 05 s90 steps",
        "1.25 GiB",
        "1,234,567",
    ):
        assert shown in text


def test_failed_questions_are_reported(read: Read, report: dict[str, Any]) -> None:
    report["summary"]["em_before"]["count"] = 199
    report["summary"]["held_out"] = {"questions": 200, "lost": {"before": {"engine_failed": 1}}}
    _, text = read(run_page(**report))
    assert "greedy, 199 → 200 of 200 held-out questions" in text
    assert "excluded from all figures: before, 1 of 200 (engine failed 1)." in text


def test_sections(read: Read, report: dict[str, Any]) -> None:
    elements, text = read(run_page(**report))
    for shown in (
        "+0.750 [+0.680, +0.810]",
        "Expert ceiling: the same model after expert traces",
        "Where was the founder of Velcor born?",
        "30answerlessrolled back0.980.598% of the episodes have no answer",
        "Logprob difference of engine and trainer, last compared at step 0: mean 2e-07",
        "train.steps90",
        "model.hashab12",
    ):
        assert shown in text
    assert "config.train" not in text
    assert [tag for tag, _ in elements].count("article") == 1


def test_page_is_self_contained(report: dict[str, Any]) -> None:
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
    """Append markup to every string of a tree."""
    match tree:
        case str():
            return tree if tree in ("search", "answer", "malformed", "answered", "rollback") else tree + HOSTILE
        case list():
            return [hostile(each) for each in tree]
        case dict():
            return {key: hostile(each) for key, each in tree.items()}
        case _:
            return tree


def test_all_texts_are_escaped(read: Read, report: dict[str, Any]) -> None:
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


def test_empty_run(read: Read) -> None:
    _, text = read(run_page(title="broken off", manifest={}, metrics=[], summary={}, transcripts=[]))
    assert "– → –" in text
    assert "No values were recorded." in text
