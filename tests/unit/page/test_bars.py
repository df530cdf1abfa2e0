"""Bars start at zero, whiskers span the interval."""

from collections.abc import Callable

import pytest

from sleuth.page.bars import LEFT, RIGHT, bar_chart
from sleuth.records import Estimate

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]
NAN = float("nan")


def test_a_bar_is_as_long_as_its_value(read: Read) -> None:
    chart = bar_chart("EM", ["before"], [("1 hop", [Estimate(0.5, 0.25, 1.0, 40)])], high=1.0)
    elements, text = read(chart)
    (bar,) = [attributes for tag, attributes in elements if attributes.get("class") == "bar s0"]
    assert (bar["x"], bar["width"]) == (f"{LEFT:.1f}", str((RIGHT - LEFT) / 2))
    (whisker,) = [attributes for _, attributes in elements if attributes.get("class") == "whisker"]
    assert (whisker["d"] or "").startswith(f"M{LEFT + 70},")
    assert f"H{RIGHT}" in (whisker["d"] or "")
    assert "0.5, 95% interval 0.25 to 1, n = 40" in text


def test_bars_below_zero_grow_to_the_left(read: Read) -> None:
    chart = bar_chart(
        "Gain", ["gain"], [("1 hop", [Estimate(-1.0, -1.0, -1.0, 3)]), ("2 hops", [Estimate(1, 1, 1, 3)])]
    )
    lost, won = [attributes for _, attributes in read(chart)[0] if attributes.get("class") == "bar s0"]
    assert float(lost["x"] or "") + float(lost["width"] or "") == float(won["x"] or "") == (LEFT + RIGHT) / 2


def test_an_absent_bar_leaves_its_place_empty(read: Read) -> None:
    groups = [("1 hop", [None, Estimate(0.5, 0.4, 0.6, 9)]), ("2 hops", [Estimate(NAN, NAN, NAN, 0), None])]
    chart = bar_chart("EM", ["before", "after"], groups, high=1.0)
    elements, text = read(chart)
    assert len([tag for tag, attributes in elements if attributes.get("height") == "11"]) == 1
    assert "2 hops" in text
    assert "nan" not in chart.lower()


def test_a_value_without_an_interval_has_no_whisker() -> None:
    chart = bar_chart(
        "Searches", ["after"], [("1 hop", [Estimate(2.0, 2.0, 2.0, 0)]), ("2 hops", [Estimate(1, NAN, NAN, 0)])]
    )
    assert "whisker" not in chart
    assert "interval" not in chart
    assert "nan" not in chart.lower()


@pytest.mark.parametrize("groups", [[], [("1 hop", [None])]])
def test_without_values_it_says_so(read: Read, groups: list[tuple[str, list[Estimate | None]]]) -> None:
    assert "No values were recorded." in read(bar_chart("EM", ["before"], groups))[1]


def test_a_long_name_is_cut_and_kept_in_its_tooltip(read: Read) -> None:
    text = read(bar_chart("EM", ["before"], [("2wikimultihopqa<b>", [Estimate(1, 1, 1, 1)])]))[1]
    assert "2wikimultih…2wikimultihopqa<b>" in text
