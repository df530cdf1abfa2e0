"""Charts drawn from the metrics of a run."""

from collections.abc import Callable
from typing import Any

from sleuth.page.run_report import curves, exact_match, outside_agent, run_page, trend
from sleuth.records import Estimate

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]


def rows(count: int, **values: float) -> list[dict[str, Any]]:
    return [
        {"step": step, **{name.replace("__", "/"): value for name, value in values.items()}}
        for step in range(1, count + 1)
    ]


def test_long_runs_are_smoothed() -> None:
    raw, mean = trend([{"step": step, "reward/mean": step % 2} for step in range(48)], "reward/mean")
    assert (raw.faint, mean.faint, mean.name) == (True, False, "mean of 4 steps")
    assert mean.y[-1] == 0.5


def test_short_runs_are_not_smoothed() -> None:
    (only,) = trend(rows(5, reward__mean=0.5), "reward/mean")
    assert not only.faint


def test_missing_values_are_gaps() -> None:
    (only,) = trend([{"step": 1, "a": 1.0}, {"step": 2}, {"step": 3, "a": None}, {"step": 4, "a": float("nan")}], "a")
    assert (list(only.x), list(only.y)) == ([1, 3, 4], [1.0, None, None])


def test_held_out_points(read: Read) -> None:
    recorded = rows(20, episode__em=0.5)
    recorded[9] |= {"evaluate/em": 0.6, "evaluate/em_low": 0.5, "evaluate/em_high": 0.7}
    around = {0.0: Estimate(0.1, 0.0, 0.2, 200), 20.0: Estimate(0.9, 0.8, 1.0, 200)}
    chart = exact_match(recorded, around, Estimate(0.95, 0.9, 1.0, 200))
    elements, text = read(chart)
    (line,) = [each["d"] for _, each in elements if each.get("class") == "stroke s1" and each["d"] != "M1,6H27"]
    assert line == "M50,172L225,82L400,28"
    (band,) = [each["d"] for _, each in elements if each.get("class") == "band s1"]
    assert band == "M50,154L225,64L400,10L400,46L225,100L50,190Z"
    assert "expert ceiling: 0.95" in text


def test_all_charts(read: Read) -> None:
    recorded = rows(30, reward__mean=0.5, episode__em=0.5, episode__searches=2, episode__tokens=90, policy__entropy=1.1,
                    policy__gradient_norm=0.3, time__generate=0.7, time__train=0.4, time__step=1.2)  # fmt: skip
    asked = {"evaluate/em": 0.5, "evaluate/em_1_hop": 0.7, "evaluate/em_yes_no": 0.3, "evaluate/searches_1_hop": 1.0}
    recorded[-1] |= asked
    elements, _ = read(curves(recorded, {}, None))
    assert [tag for tag, _ in elements].count("figure") == 7  # of kinds, one evaluation makes no curve
    recorded[9] |= asked
    elements, text = read(curves(recorded, {}, None))
    assert [tag for tag, _ in elements].count("figure") == 9
    for title in ("Exact match", "Reward", "Policy entropy", "Held-out exact match by kind", "Seconds per step"):
        assert title in text
    assert text.index("step: 1.2") < text.index("generate: 0.7") < text.index("train: 0.4")
    assert "yes no" in text


def test_missing_metrics_have_no_chart(read: Read) -> None:
    _, text = read(curves(rows(3, reward__mean=0.5), {}, None))
    assert "entropy" not in text
    assert "by kind" not in text


def test_no_steps(read: Read) -> None:
    _, text = read(curves([], {}, None))
    assert text.count("No values were recorded.") == 2


def test_outside_agent(read: Read) -> None:
    counts = {"attempts": 4, "calls": 10, "segments": 6, "forks": 2, "rewritten": 0, "helper_calls": 0, "failures": 1}
    recorded = rows(
        3, **{f"gateway__{name}": float(count) for name, count in counts.items()}, segment__tokens_writer=7.0
    )
    recorded[2] = {"step": 3, "gateway/attempts": 0.0, "gateway/calls": 0.0}  # a step without attempts has no mean
    elements, text = read("".join(outside_agent(recorded)))
    for line in ("attempts8", "calls of the policy20", "segments12", "forks4", "messages rewritten by the client0"):
        assert line in text
    assert [tag for tag, _ in elements].count("figure") == 5
    assert "Calls of the policy per attempt" in text
    assert "each step: 2.5" in text
    assert "Tokens writer" in text
    assert "Messages rewritten by the client per attempt" not in text


def test_only_runs_of_an_outside_agent_have_its_section(read: Read) -> None:
    def page(metrics: list[dict[str, Any]]) -> str:
        return read(run_page(title="a", manifest={}, metrics=metrics, summary={}, transcripts=[]))[1]

    assert "Outside agent" not in page(rows(3, reward__mean=0.5))
    assert "Outside agent" in page(rows(3, gateway__attempts=4.0, gateway__calls=8.0))
