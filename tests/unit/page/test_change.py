"""What training changed, read from a summary."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from sleuth.page.change import change_charts, change_table, changes, estimate, losses, over
from sleuth.records import Estimate

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]


def mean(value: float, low: float, high: float, count: int = 50) -> dict[str, float]:
    return asdict(Estimate(value, low, high, count))


@pytest.fixture
def summary() -> dict[str, Any]:
    return {
        "em_before": mean(0.1, 0.05, 0.2, 100),
        "em_after": mean(0.8, 0.7, 0.9, 100),
        "em_by_hops": {
            "1 hop": {"before": mean(0.2, 0.1, 0.3), "after": mean(0.9, 0.8, 0.95), "gain": mean(0.7, 0.6, 0.8)},
            "3 hops": {"before": mean(0.0, 0.0, 0.1), "after": mean(0.1, 0.0, 0.2), "gain": mean(0.1, -0.05, 0.2)},
            "yes/no": {"before": mean(0.5, 0.4, 0.6), "after": mean(0.3, 0.2, 0.4), "gain": mean(-0.2, -0.3, -0.1)},
        },
        "searches_by_hops": {"1 hop": {"before": 0.25, "after": 1.0625}, "3 hops": {"before": 0, "after": 2}},
        "ceiling": {
            "em": mean(0.85, 0.8, 0.9),
            "by_hops": {"1 hop": mean(0.95, 0.9, 1.0)},
            "what": "trained on traces",
        },
    }


def test_estimates_are_read_back() -> None:
    assert estimate(mean(0.5, 0.25, 0.75, 8)) == Estimate(0.5, 0.25, 0.75, 8)
    assert estimate({"value": 1, "low": 0, "high": 1}) == Estimate(1.0, 0.0, 1.0, 0)
    assert estimate(2) == Estimate(2.0, 2.0, 2.0, 0)
    assert estimate(None) is estimate({"value": None, "low": 0, "high": 1}) is None


def test_kinds_in_order_and_all_at_the_end(summary: dict[str, Any]) -> None:
    found = changes(summary)
    assert [change.kind for change in found] == ["1 hop", "3 hops", "yes/no", "all"]
    assert found[0].ceiling == Estimate(0.95, 0.9, 1.0, 50)
    assert found[1].ceiling is None
    assert found[3].after == Estimate(0.8, 0.7, 0.9, 100)


def test_the_table_row(read: Read, summary: dict[str, Any]) -> None:
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
def test_figures_say_over_how_many_questions(counts: tuple[int | None, ...], asked: int | None, shown: str) -> None:
    before, after = (None if count is None else Estimate(0.5, 0.4, 0.6, count) for count in counts)
    assert over(before, after, asked) == shown


def test_what_was_lost_is_said(summary: dict[str, Any]) -> None:
    assert losses(summary) == []
    summary["held_out"] = {
        "questions": 100,
        "lost": {"before": {"search_unavailable": 1}, "sampled_after": {"engine_failed": 2, "search_unavailable": 1}},
        "kinds_without_pairs": ["yes/no"],
    }
    summary["em_gain"] = mean(0.7, 0.6, 0.8, 99)
    assert losses(summary) == [
        "Lost to failures that are not the model's, and in no figure: before, 1 of 100 (search unavailable 1); "
        "sampled after, 3 of 100 (engine failed 2, search unavailable 1).",
        "The gain is over the 99 questions that were usable both times.",
        "No question of these kinds was usable both times: yes/no.",
    ]


def test_only_gains_that_exclude_zero_are_marked(read: Read, summary: dict[str, Any]) -> None:
    elements, _ = read(change_table(changes(summary)))
    assert [attributes["class"] for tag, attributes in elements if tag == "strong"] == ["good", "bad"]


def test_without_a_ceiling_there_is_no_column_and_no_bar(read: Read, summary: dict[str, Any]) -> None:
    summary["ceiling"] = None
    found = changes(summary)
    assert "ceiling" not in change_table(found) + change_charts(found)


def test_an_empty_summary_is_shown_as_absent(read: Read) -> None:
    found = changes({})
    assert read(change_table(found))[1].endswith("all" + "–" * 6)
    assert "No values were recorded." in read(change_charts(found))[1]
