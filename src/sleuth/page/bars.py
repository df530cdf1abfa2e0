"""Bars with their 95% intervals, grouped by row: before beside after, kind by kind."""

from collections.abc import Iterator, Sequence

from sleuth.page.axis import Axis, axis, drawable
from sleuth.page.figure import empty, figure, legend, paint, picture
from sleuth.page.number import short
from sleuth.page.text import Html, element, joined
from sleuth.records import Estimate

LEFT, RIGHT = 92, 372
_BAR, _GAP, _FOOT = 14, 12, 26
_LABEL = 12  # characters that fit left of the bars


def bar_chart(
    title: str,
    names: Sequence[str],
    groups: Sequence[tuple[str, Sequence[Estimate | None]]],
    *,
    high: float | None = None,
) -> Html:
    """A figure with one bar for each name in every group, from zero; None leaves its place empty."""
    known = [bar for _, bars in groups for bar in bars if bar is not None and drawable(bar.value)]
    if not known:
        return empty(title)
    ends = [end for bar in known for end in (bar.value, bar.low, bar.high) if drawable(end)]
    across = axis([0.0, *ends], LEFT, RIGHT, high=high)
    stride = _BAR * len(names) + _GAP
    bottom = stride * len(groups) + _GAP
    rows = (_group(across, label, bars, _GAP + stride * row) for row, (label, bars) in enumerate(groups))
    drawn = [*_grid(across, bottom), *rows]
    keys = [
        (name, element("rect", x=2, y=1, width=24, height=10, class_=f"bar {paint(i)}")) for i, name in enumerate(names)
    ]
    return figure(title, legend(keys), picture(title, bottom + _FOOT, drawn))


def _grid(across: Axis, bottom: float) -> Iterator[Html]:
    for tick in across.ticks():
        place = across.place(tick)
        yield element("line", x1=place, x2=place, y1=4, y2=bottom, class_="grid")
        yield element("text", across.label(tick), x=place, y=bottom + 16, text_anchor="middle")


def _group(across: Axis, label: str, bars: Sequence[Estimate | None], top: float) -> Html:
    middle = top + _BAR * len(bars) / 2 + 4
    shown = label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…"
    name = element("text", shown, element("title", label), x=LEFT - 8, y=middle, text_anchor="end", class_="value")
    drawn = (_bar(across, bar, top + _BAR * row, row) for row, bar in enumerate(bars))
    return element("g", name, joined(drawn))


def _bar(across: Axis, bar: Estimate | None, top: float, colour: int) -> Html:
    if bar is None or not drawable(bar.value):
        return Html("")
    zero, end = across.place(0.0), across.place(bar.value)
    tip = element("title", _tip(bar))
    box = element(
        "rect",
        tip,
        x=min(zero, end),
        y=top,
        width=round(abs(end - zero), 2),
        height=_BAR - 3,
        class_=f"bar {paint(colour)}",
    )
    reach = across.place(bar.high) if drawable(bar.high) else end
    text = element("text", _figure(bar.value), x=max(end, reach) + 5, y=top + _BAR - 4, class_="value")
    return joined([box, _whisker(across, bar, top + (_BAR - 3) / 2), text])


def _figure(value: float) -> str:
    """A mean with two decimals, a count with none."""
    return f"{value:,.0f}" if abs(value) >= 100 or isinstance(value, int) else f"{value:.2f}"


def _tip(bar: Estimate) -> str:
    span = f", 95% interval {short(bar.low)} to {short(bar.high)}, n = {bar.count}" if _has_interval(bar) else ""
    return f"{short(bar.value)}{span}"


def _has_interval(bar: Estimate) -> bool:
    return drawable(bar.low) and drawable(bar.high) and bar.low != bar.high


def _whisker(across: Axis, bar: Estimate, middle: float) -> Html:
    if not _has_interval(bar):
        return Html("")
    low, high = across.place(bar.low), across.place(bar.high)
    ends = f"M{low:g},{middle - 3:g}v6M{low:g},{middle:g}H{high:g}M{high:g},{middle - 3:g}v6"
    return element("path", d=ends, class_="whisker")
