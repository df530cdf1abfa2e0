"""Axes, line charts and bar charts: coordinates, gaps and missing values."""

from collections.abc import Callable, Sequence

import pytest

from sleuth.page.charts import (
    BAR_LEFT,
    BAR_RIGHT,
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Rule,
    Series,
    axis,
    bar_chart,
    drawable,
    line_chart,
    smoothed,
)
from sleuth.records import Estimate

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]
NAN = float("nan")


def labels(*values: float, low: float | None = None, high: float | None = None, whole: bool = False) -> list[str]:
    made = axis(values, 0, 100, low=low, high=high, whole=whole)
    return [made.label(tick) for tick in made.ticks()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.0, 1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((0.1, 1.2), ["0", "0.25", "0.50", "0.75", "1.00", "1.25"]),
        ((-3.0, 4.0), ["-4", "-2", "0", "2", "4"]),
        ((0, 23_000), ["0", "5k", "10k", "15k", "20k", "25k"]),
        ((1200, 1900), ["1,200", "1,400", "1,600", "1,800", "2,000"]),
        ((0, 4e6), ["0", "1M", "2M", "3M", "4M"]),
        ((0, 9e-7), ["0", "2e-07", "4e-07", "6e-07", "8e-07", "1e-06"]),
    ],
)
def test_ticks_are_round(values: tuple[float, ...], expected: list[str]) -> None:
    assert labels(*values) == expected


def test_values_are_placed_in_proportion() -> None:
    made = axis([0.0, 10.0], 50, 250)
    assert [made.place(value) for value in (0, 2.5, 10)] == [50, 100, 250]


def test_values_outside_the_axis_are_clamped() -> None:
    made = axis([0.0, 1.0], 190, 10)
    assert [made.place(value) for value in (-5, 0.5, 7)] == [190, 100, 10]


@pytest.mark.parametrize("value", [0.0, 3.0, -2.5, 1e-300, 1e50])
def test_a_single_value_has_room_on_both_sides(value: float) -> None:
    made = axis([value], 0, 100)
    assert 0 < made.place(value) < 100
    assert made.ticks()


def test_a_single_zero_is_at_the_end_of_an_axis_from_zero() -> None:
    made = axis([0.0], 100, 0, low=0.0)
    assert (made.low, made.place(0.0)) == (0.0, 100)


def test_requested_bounds_are_kept() -> None:
    made = axis([0.3, 0.4], 0, 100, low=0.0, high=1.0)
    assert (made.low, made.high) == (0.0, 1.0)


def test_whole_ticks() -> None:
    assert labels(1, 3, whole=True) == ["1", "2", "3"]


def test_default_axis_is_0_to_1() -> None:
    made = axis([], 0, 100)
    assert (made.low, made.high) == (0.0, 1.0)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -float("inf"), 1e200, "7"])
def test_not_drawable(value: object) -> None:
    assert not drawable(value)


def curve(*values: float | None, start: int = 0) -> Series:
    return Series("reward", list(range(start, start + len(values))), values)


def drawn(read: Read, chart: str, tag: str, style: str) -> list[dict[str, str | None]]:
    elements, _ = read(chart)
    return [attributes for name, attributes in elements if name == tag and attributes.get("class") == style]


def test_line_coordinates(read: Read) -> None:
    chart = line_chart("Reward", [Series("reward", [0, 5, 10], [0.0, 0.5, 1.0])], low=0.0, high=1.0)
    (line,) = drawn(read, chart, "path", "stroke s0")
    assert line["d"] == f"M{LEFT},{BOTTOM}L{(LEFT + RIGHT) / 2:g},{(TOP + BOTTOM) / 2:g}L{RIGHT},{TOP}"


def test_gaps_break_the_line_and_a_lone_point_is_a_dot(read: Read) -> None:
    values = [0.0, 1.0, NAN, 0.5, None, 1.0, 0.0, float("inf")]
    chart = line_chart("Reward", [curve(*values)], low=0.0, high=1.0)
    (line,) = drawn(read, chart, "path", "stroke s0")
    assert (line["d"] or "").count("M") == 2
    dots = drawn(read, chart, "circle", "fill s0")
    assert [dot["cy"] for dot in dots] == ["190.0", "10.0", "100.0", "10.0", "190.0"]


@pytest.mark.parametrize("values", [[], [NAN], [None, None], [float("inf"), NAN]])
def test_a_line_chart_without_values_says_so(read: Read, values: Sequence[float | None]) -> None:
    elements, text = read(line_chart("Reward", [curve(*values)]))
    assert "No values were recorded." in text
    assert "svg" not in [tag for tag, _ in elements]


@pytest.mark.parametrize("values", [[0.7], [0.0], [2.0, 2.0, 2.0], [-1e-12], [1e9, 1e9 + 1], [NAN, 3.0, NAN]])
def test_constant_and_single_values_are_inside_the_chart(read: Read, values: Sequence[float]) -> None:
    chart = line_chart("Reward", [curve(*values)])
    assert "nan" not in chart.lower()
    for dot in drawn(read, chart, "circle", "fill s0"):
        assert LEFT <= float(dot["cx"] or "") <= RIGHT
        assert TOP <= float(dot["cy"] or "") <= BOTTOM


def test_band_outline(read: Read) -> None:
    series = Series("em", [0, 10], [0.5, 0.5], [0.25, 0.0], [0.75, 1.0], colour=1)
    (band,) = drawn(read, line_chart("EM", [series], low=0.0, high=1.0), "path", "band s1")
    assert band["d"] == "M50,55L400,10L400,190L50,145Z"


def test_bands_have_gaps(read: Read) -> None:
    series = Series("em", [0, 1, 2], [0.5, 0.5, 0.5], [0.2, None, 0.4], [0.6, 0.7, NAN])
    (band,) = drawn(read, line_chart("EM", [series], low=0.0, high=1.0), "path", "band s0")
    assert (band["d"] or "").count("M") == 1


def test_rule(read: Read) -> None:
    chart = line_chart(
        "EM", [curve(0.1, 0.2)], rules=[Rule("ceiling", 0.9, 2), Rule("unknown", NAN)], low=0.0, high=1.0
    )
    (rule,) = drawn(read, chart, "line", "stroke rule s2")
    assert (rule["x1"], rule["x2"], rule["y1"]) == ("50", "400", "28.0")
    assert "ceiling: 0.9" in read(chart)[1]


def test_tooltip_lists_all_values_of_a_step(read: Read) -> None:
    chart = line_chart("EM", [curve(0.25, 0.5), Series("held out", [1], [0.75], colour=1)])
    assert "step 1\nreward: 0.5\nheld out: 0.75" in read(chart)[1]


def test_long_runs_have_few_tooltips_and_every_point(read: Read) -> None:
    chart = line_chart("EM", [curve(*([0.5] * 5000)), Series("held out", [1234], [0.75], colour=1)])
    assert len(drawn(read, chart, "rect", "column")) == 120
    assert "\nreward: 0.5\nheld out: 0.75" in read(chart)[1]


def test_tooltip_columns_tile_the_chart(read: Read) -> None:
    columns = drawn(read, line_chart("EM", [curve(1.0, 2.0, 3.0, 2.0)]), "rect", "column")
    spans = [(float(each["x"] or ""), float(each["width"] or "")) for each in columns]
    assert spans == [(LEFT + 87.5 * place, 87.5) for place in range(4)]


def test_legend_is_for_several_curves(read: Read) -> None:
    raw, mean = curve(1.0, 2.0), Series("mean", [0, 1], [1.0, 1.5], faint=True, colour=3)
    assert "legend" not in line_chart("EM", [raw])
    chart = line_chart("EM", [raw, mean])
    assert read(chart)[1].startswith("EMrewardmean")
    assert len(drawn(read, chart, "path", "stroke s3 faint")) == 2


def test_names_are_escaped(read: Read) -> None:
    chart = line_chart("<script>", [Series("<b>", [0], [1.0]), Series("</svg>", [0], [1.0])], x_label='"><i>')
    tags = {tag for tag, _ in read(chart)[0]}
    assert not tags & {"script", "b", "i"}


def test_a_series_of_unequal_lengths_raises() -> None:
    with pytest.raises(ValueError, match="zip"):
        line_chart("EM", [Series("a", [0, 1], [1.0])])


def test_smoothing_is_a_trailing_mean_that_skips_gaps() -> None:
    assert smoothed([1.0, 2.0, 3.0, 4.0], 2) == [1.0, 1.5, 2.5, 3.5]
    assert smoothed([1.0, NAN, None, 4.0], 3) == [1.0, None, None, 4.0]
    assert smoothed([2.0, None, 4.0], 3) == [2.0, None, 3.0]


def test_a_bar_is_as_long_as_its_value(read: Read) -> None:
    chart = bar_chart("EM", ["before"], [("1 hop", [Estimate(0.5, 0.25, 1.0, 40)])], high=1.0)
    elements, text = read(chart)
    (bar,) = [attributes for tag, attributes in elements if attributes.get("class") == "bar s0"]
    assert (bar["x"], bar["width"]) == (f"{BAR_LEFT:.1f}", str((BAR_RIGHT - BAR_LEFT) / 2))
    (whisker,) = [attributes for _, attributes in elements if attributes.get("class") == "whisker"]
    assert (whisker["d"] or "").startswith(f"M{BAR_LEFT + 70},")
    assert f"H{BAR_RIGHT}" in (whisker["d"] or "")
    assert "0.5, 95% interval 0.25 to 1, n = 40" in text


def test_bars_below_zero_grow_to_the_left(read: Read) -> None:
    chart = bar_chart(
        "Gain", ["gain"], [("1 hop", [Estimate(-1.0, -1.0, -1.0, 3)]), ("2 hops", [Estimate(1, 1, 1, 3)])]
    )
    lost, won = [attributes for _, attributes in read(chart)[0] if attributes.get("class") == "bar s0"]
    assert float(lost["x"] or "") + float(lost["width"] or "") == float(won["x"] or "") == (BAR_LEFT + BAR_RIGHT) / 2


def test_a_missing_bar_leaves_a_gap(read: Read) -> None:
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
def test_a_bar_chart_without_values_says_so(read: Read, groups: list[tuple[str, list[Estimate | None]]]) -> None:
    assert "No values were recorded." in read(bar_chart("EM", ["before"], groups))[1]


def test_a_long_name_is_truncated(read: Read) -> None:
    text = read(bar_chart("EM", ["before"], [("2wikimultihopqa<b>", [Estimate(1, 1, 1, 1)])]))[1]
    assert "2wikimultih…2wikimultihopqa<b>" in text
