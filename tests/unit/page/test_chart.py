"""Line charts: where every number lands, and what happens where there is none."""

from collections.abc import Callable, Sequence

import pytest

from sleuth.page.chart import BOTTOM, LEFT, RIGHT, TOP, Rule, Series, line_chart, smoothed

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]
NAN = float("nan")


def curve(*values: float | None, start: int = 0) -> Series:
    return Series("reward", list(range(start, start + len(values))), values)


def drawn(read: Read, chart: str, tag: str, look: str) -> list[dict[str, str | None]]:
    elements, _ = read(chart)
    return [attributes for name, attributes in elements if name == tag and attributes.get("class") == look]


def test_a_line_runs_from_corner_to_corner(read: Read) -> None:
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
def test_without_a_number_nothing_is_drawn(read: Read, values: Sequence[float | None]) -> None:
    elements, text = read(line_chart("Reward", [curve(*values)]))
    assert "No values were recorded." in text
    assert "svg" not in [tag for tag, _ in elements]


@pytest.mark.parametrize("values", [[0.7], [0.0], [2.0, 2.0, 2.0], [-1e-12], [1e9, 1e9 + 1], [NAN, 3.0, NAN]])
def test_flat_and_lonely_values_are_drawn_inside(read: Read, values: Sequence[float]) -> None:
    chart = line_chart("Reward", [curve(*values)])
    assert "nan" not in chart.lower()
    for dot in drawn(read, chart, "circle", "fill s0"):
        assert LEFT <= float(dot["cx"] or "") <= RIGHT
        assert TOP <= float(dot["cy"] or "") <= BOTTOM


def test_a_band_goes_out_on_top_and_back_below(read: Read) -> None:
    series = Series("em", [0, 10], [0.5, 0.5], [0.25, 0.0], [0.75, 1.0], colour=1)
    (band,) = drawn(read, line_chart("EM", [series], low=0.0, high=1.0), "path", "band s1")
    assert band["d"] == "M50,55L400,10L400,190L50,145Z"


def test_a_band_has_gaps_too(read: Read) -> None:
    series = Series("em", [0, 1, 2], [0.5, 0.5, 0.5], [0.2, None, 0.4], [0.6, 0.7, NAN])
    (band,) = drawn(read, line_chart("EM", [series], low=0.0, high=1.0), "path", "band s0")
    assert (band["d"] or "").count("M") == 1


def test_a_rule_crosses_the_chart_and_is_on_the_axis(read: Read) -> None:
    chart = line_chart(
        "EM", [curve(0.1, 0.2)], rules=[Rule("ceiling", 0.9, 2), Rule("unknown", NAN)], low=0.0, high=1.0
    )
    (rule,) = drawn(read, chart, "line", "stroke rule s2")
    assert (rule["x1"], rule["x2"], rule["y1"]) == ("50", "400", "28.0")
    assert "ceiling: 0.9" in read(chart)[1]


def test_pointing_tells_every_value_at_a_step(read: Read) -> None:
    chart = line_chart("EM", [curve(0.25, 0.5), Series("held out", [1], [0.75], colour=1)])
    assert "step 1\nreward: 0.5\nheld out: 0.75" in read(chart)[1]


def test_tooltips_stay_few_in_a_long_run_and_leave_no_rare_point_out(read: Read) -> None:
    chart = line_chart("EM", [curve(*([0.5] * 5000)), Series("held out", [1234], [0.75], colour=1)])
    assert len(drawn(read, chart, "rect", "column")) == 120
    assert "\nreward: 0.5\nheld out: 0.75" in read(chart)[1]


def test_columns_cover_their_points_and_stay_on_the_chart(read: Read) -> None:
    columns = drawn(read, line_chart("EM", [curve(1.0, 2.0, 3.0, 2.0)]), "rect", "column")
    spans = [(float(each["x"] or ""), float(each["width"] or "")) for each in columns]
    assert spans == [(LEFT + 87.5 * place, 87.5) for place in range(4)]


def test_a_legend_names_several_curves_and_no_single_one(read: Read) -> None:
    raw, mean = curve(1.0, 2.0), Series("mean", [0, 1], [1.0, 1.5], faint=True, colour=3)
    assert "legend" not in line_chart("EM", [raw])
    chart = line_chart("EM", [raw, mean])
    assert read(chart)[1].startswith("EMrewardmean")
    assert len(drawn(read, chart, "path", "stroke s3 faint")) == 2


def test_names_are_text(read: Read) -> None:
    chart = line_chart("<script>", [Series("<b>", [0], [1.0]), Series("</svg>", [0], [1.0])], x_label='"><i>')
    tags = {tag for tag, _ in read(chart)[0]}
    assert not tags & {"script", "b", "i"}


def test_a_series_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        line_chart("EM", [Series("a", [0, 1], [1.0])])


def test_smoothing_is_a_trailing_mean_that_skips_gaps() -> None:
    assert smoothed([1.0, 2.0, 3.0, 4.0], 2) == [1.0, 1.5, 2.5, 3.5]
    assert smoothed([1.0, NAN, None, 4.0], 3) == [1.0, None, None, 4.0]
    assert smoothed([2.0, None, 4.0], 3) == [2.0, None, 3.0]
