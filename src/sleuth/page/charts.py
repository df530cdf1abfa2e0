"""Line and bar charts as inline SVG, with intervals, gaps and tooltips."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from sleuth.page.document import Html, element, joined, short
from sleuth.records import Estimate

WIDTH, HEIGHT = 420, 230  # almost the width of a phone, so that labels stay readable
LEFT, RIGHT, TOP, BOTTOM = 50, 400, 10, 190  # plot area of a line chart
BAR_LEFT, BAR_RIGHT = 92, 372
COLOURS = 6
_MAX_DOTS = 24  # series with at most this many points show a dot per point
_MAX_TOOLTIPS = 120  # more would be narrower than a pointer
_BAR, _GAP, _FOOT = 14, 12, 26
_LABEL = 12  # characters that fit left of the bars
_LARGEST = 1e100  # beyond this, the tick arithmetic overflows

Numbers = Sequence[float | None]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values from `low` to `high` to coordinates from `start` to `end`, with ticks at multiples of `step`."""

    low: float
    high: float
    step: float
    start: float
    end: float

    def place(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[float]:
        first, last = math.ceil(self.low / self.step - 1e-6), math.floor(self.high / self.step + 1e-6)
        return [number * self.step for number in range(first, last + 1)]

    def label(self, value: float) -> str:
        """Return the shortest label that differs from the neighbouring ticks: 0.25, 1,500, 20k, 3e-06."""
        if abs(value) < self.step / 2:
            return "0"
        if self.step < 1e-4 or abs(value) >= 1e9:
            digits = max(3, math.floor(math.log10(abs(value) / self.step) + 1e-9) + 2)
            return f"{value:.{digits}g}"
        for size, suffix in ((1e6, "M"), (1e3, "k")):
            if self.step >= size and abs(value) >= size:
                return f"{value / size:.6g}{suffix}"
        decimals = (digits for digits in range(6) if math.isclose(self.step, round(self.step, digits), rel_tol=1e-6))
        return f"{value:,.{next(decimals, 6)}f}"


def axis(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    low: float | None = None,
    high: float | None = None,
    whole: bool = False,
    ticks: int = 5,
    rounded: bool = True,
) -> Axis:
    """Build an axis that covers the values and the bounds `low` and `high`.

    `whole` keeps ticks on integers; without `rounded`, the axis ends at the outermost values instead of ticks.
    """
    held = [*values, *(bound for bound in (low, high) if bound is not None)] or [0.0, 1.0]
    bottom, top = float(min(held)), float(max(held))
    size = max(abs(bottom), abs(top))
    if top - bottom <= max(size * 1e-9, 1e-90):  # widen an empty range, keeping a requested bound
        room = size / 2 or 0.5
        fixed = bottom == low
        bottom, top = bottom if fixed else bottom - room, top if top == high and not fixed else top + room
    step = (top - bottom) / ticks
    power = 10.0 ** math.floor(math.log10(step))
    step = next((factor * power for factor in (1, 2, 2.5, 5) if step <= factor * power * (1 + 1e-9)), 10 * power)
    if whole:
        step = max(1.0, float(round(step)))
    if rounded:
        bottom, top = math.floor(bottom / step + 1e-6) * step, math.ceil(top / step - 1e-6) * step
    return Axis(bottom, top, step, start, end)


def drawable(value: object) -> bool:
    """Whether a value can be drawn; None, NaN and infinities cannot."""
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < _LARGEST


@dataclass(frozen=True, slots=True)
class Series:
    """A named curve; `low` and `high` bound its shaded band, `colour` is an index into the palette."""

    name: str
    x: Sequence[float]
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    faint: bool = False
    colour: int = 0

    @property
    def style(self) -> str:
        return f"{_colour(self.colour)}{' faint' if self.faint else ''}"

    def segments(self) -> Iterator[list[Point]]:
        points = zip(self.x, self.y, strict=True)
        for known, run in groupby(points, key=lambda point: drawable(point[0]) and drawable(point[1])):
            if known:
                yield [(x, y) for x, y in run if y is not None]


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    value: float
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Marker:
    name: str
    x: float


@dataclass(frozen=True, slots=True)
class _Frame:
    x: Axis
    y: Axis

    def path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{self.x.place(x):g},{self.y.place(y):g}" for x, y in points)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    rules: Sequence[Rule] = (),
    markers: Sequence[Marker] = (),
    x_label: str = "step",
    low: float | None = None,
    high: float | None = None,
) -> Html:
    """Draw curves on shared axes; returns a note if there is no drawable value."""
    levels = [rule for rule in rules if drawable(rule.value)]
    points = [point for each in series for segment in each.segments() for point in segment]
    if not points:
        return _empty(title)
    edges = [bound for each in series for line in (each.low, each.high) if line for bound in line if bound is not None]
    heights = [y for _, y in points] + [rule.value for rule in levels] + [edge for edge in edges if drawable(edge)]
    frame = _Frame(
        axis((x for x, _ in points), LEFT, RIGHT, whole=True, rounded=False),
        axis(heights, BOTTOM, TOP, low=low, high=high),
    )
    drawn = [
        *_grid(frame, x_label),
        *(_band(frame, each) for each in series),
        *(_rule(frame, rule) for rule in levels),
        *(_curve(frame, each) for each in series),
        *_tooltips(frame, series, x_label),
        *(_marker(frame, marker, x_label) for marker in markers if frame.x.low <= marker.x <= frame.x.high),
    ]
    styles = [(each.name, each.style) for each in series]
    styles += [(rule.name, f"rule {_colour(rule.colour)}") for rule in levels]
    samples = [(name, element("path", d="M1,6H27", class_=f"stroke {style}")) for name, style in styles]
    return _figure(title, _legend(samples), _svg(title, HEIGHT, drawn))


def smoothed(values: Numbers, window: int) -> list[float | None]:
    """Compute the running mean of the last `window` known values; missing values stay missing."""
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - window) : end] if value is not None and drawable(value)]
        means.append(sum(known) / len(known) if known and drawable(values[end - 1]) else None)
    return means


def _grid(frame: _Frame, x_label: str) -> Iterator[Html]:
    for tick in frame.y.ticks():
        height = frame.y.place(tick)
        yield element("line", x1=LEFT, x2=RIGHT, y1=height, y2=height, class_="grid")
        yield element("text", frame.y.label(tick), x=LEFT - 6, y=height + 4, text_anchor="end")
    yield element("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="axis")
    for tick in frame.x.ticks():
        yield element("text", frame.x.label(tick), x=frame.x.place(tick), y=BOTTOM + 16, text_anchor="middle")
    yield element("text", x_label, x=(LEFT + RIGHT) / 2, y=HEIGHT - 6, text_anchor="middle")


def _band(frame: _Frame, series: Series) -> Html:
    if series.low is None or series.high is None:
        return Html("")
    parts = []
    edges = zip(series.x, series.low, series.high, strict=True)
    for known, run in groupby(edges, key=lambda edge: all(drawable(value) for value in edge)):
        if known:
            bounds = [(x, low, high) for x, low, high in run if low is not None and high is not None]
            outline = [(x, high) for x, _, high in bounds] + [(x, low) for x, low, _ in reversed(bounds)]
            parts.append(frame.path(outline) + "Z")
    return element("path", d="".join(parts), class_=f"band {_colour(series.colour)}") if parts else Html("")


def _rule(frame: _Frame, rule: Rule) -> Html:
    height = frame.y.place(rule.value)
    tip = element("title", f"{rule.name}: {short(rule.value)}")
    return element("line", tip, x1=LEFT, x2=RIGHT, y1=height, y2=height, class_=f"stroke rule {_colour(rule.colour)}")


def _marker(frame: _Frame, marker: Marker, x_label: str) -> Html:
    """Draw a thin vertical line with a wider base to hover over, above the tooltip columns."""
    place = frame.x.place(marker.x)
    tip = element("title", f"{x_label} {short(marker.x)}: {marker.name}")
    return element("path", tip, d=f"M{place:g},{TOP}V{BOTTOM}m-4,0h8l-4,-7z", class_="mark-line")


def _curve(frame: _Frame, series: Series) -> Html:
    segments = list(series.segments())
    sparse = sum(map(len, segments)) <= _MAX_DOTS
    dots = [
        element("circle", cx=frame.x.place(x), cy=frame.y.place(y), r=2.5, class_=f"fill {series.style}")
        for segment in segments
        if sparse or len(segment) == 1
        for x, y in segment
    ]
    path = "".join(frame.path(segment) for segment in segments if len(segment) > 1)
    return joined([element("path", d=path, class_=f"stroke {series.style}") if path else Html(""), *dots])


def _tooltips(frame: _Frame, series: Sequence[Series], x_label: str) -> Iterator[Html]:
    """Yield invisible columns with tooltips that list all values at a position."""
    points = [(each.name, x, y) for each in series for segment in each.segments() for x, y in segment]
    count = min(_MAX_TOOLTIPS, len({x for _, x, _ in points}))
    columns: dict[int, list[tuple[str, float, float]]] = {}
    for point in points:
        share = (frame.x.place(point[1]) - LEFT) / (RIGHT - LEFT)
        columns.setdefault(min(count - 1, int(share * count)), []).append(point)
    width = (RIGHT - LEFT) / count
    for place, held in sorted(columns.items()):
        first, last = min(x for _, x, _ in held), max(x for _, x, _ in held)
        steps = short(first) if first == last else f"{short(first)}–{short(last)}"
        latest = {name: y for name, _, y in held}
        text = "\n".join([f"{x_label} {steps}", *(f"{name}: {short(y)}" for name, y in latest.items())])
        left = round(LEFT + place * width, 2)
        tip = element("title", text)
        yield element("rect", tip, x=left, y=TOP, width=round(width, 2), height=BOTTOM - TOP, class_="column")


def bar_chart(
    title: str,
    names: Sequence[str],
    groups: Sequence[tuple[str, Sequence[Estimate | None]]],
    *,
    high: float | None = None,
) -> Html:
    """Draw horizontal bars from zero with 95% intervals, one per name in each group; None leaves a gap."""
    known = [bar for _, bars in groups for bar in bars if bar is not None and drawable(bar.value)]
    if not known:
        return _empty(title)
    ends = [end for bar in known for end in (bar.value, bar.low, bar.high) if drawable(end)]
    across = axis([0.0, *ends], BAR_LEFT, BAR_RIGHT, high=high)
    stride = _BAR * len(names) + _GAP
    bottom = stride * len(groups) + _GAP
    drawn = []
    for tick in across.ticks():
        place = across.place(tick)
        drawn.append(element("line", x1=place, x2=place, y1=4, y2=bottom, class_="grid"))
        drawn.append(element("text", across.label(tick), x=place, y=bottom + 16, text_anchor="middle"))
    drawn += [_bar_group(across, label, bars, _GAP + stride * row) for row, (label, bars) in enumerate(groups)]
    samples = [
        (name, element("rect", x=2, y=1, width=24, height=10, class_=f"bar {_colour(number)}"))
        for number, name in enumerate(names)
    ]
    return _figure(title, _legend(samples), _svg(title, bottom + _FOOT, drawn))


def _bar_group(across: Axis, label: str, bars: Sequence[Estimate | None], top: float) -> Html:
    middle = top + _BAR * len(bars) / 2 + 4
    shown = label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…"
    tip = element("title", label)
    name = element("text", shown, tip, x=BAR_LEFT - 8, y=middle, text_anchor="end", class_="value")
    drawn = (_bar(across, bar, top + _BAR * row, row) for row, bar in enumerate(bars) if bar and drawable(bar.value))
    return element("g", name, joined(drawn))


def _bar(across: Axis, bar: Estimate, top: float, colour: int) -> Html:
    zero, end = across.place(0.0), across.place(bar.value)
    text, whisker = short(bar.value), Html("")
    if drawable(bar.low) and drawable(bar.high) and bar.low != bar.high:
        text += f", 95% interval {short(bar.low)} to {short(bar.high)}, n = {bar.count}"
        low, high, middle = across.place(bar.low), across.place(bar.high), top + (_BAR - 3) / 2
        ends = f"M{low:g},{middle - 3:g}v6M{low:g},{middle:g}H{high:g}M{high:g},{middle - 3:g}v6"
        whisker = element("path", d=ends, class_="whisker")
    box = element(
        "rect",
        element("title", text),
        x=min(zero, end),
        y=top,
        width=round(abs(end - zero), 2),
        height=_BAR - 3,
        class_=f"bar {_colour(colour)}",
    )
    reach = across.place(bar.high) if drawable(bar.high) else end
    value = f"{bar.value:,.0f}" if abs(bar.value) >= 100 or isinstance(bar.value, int) else f"{bar.value:.2f}"
    label = element("text", value, x=max(end, reach) + 5, y=top + _BAR - 4, class_="value")
    return joined([box, whisker, label])


def _figure(title: str, *content: object) -> Html:
    return element("figure", element("figcaption", title), *content)


def _svg(title: str, height: float, drawn: Sequence[Html]) -> Html:
    return element("svg", *drawn, viewBox=f"0 0 {WIDTH} {height:g}", class_="chart", role="img", aria_label=title)


def _legend(samples: Sequence[tuple[str, Html]]) -> Html:
    if len(samples) < 2:
        return Html("")
    items = (
        element("li", element("svg", sample, viewBox="0 0 28 12", aria_hidden="true"), name) for name, sample in samples
    )
    return element("ul", *items, class_="legend")


def _colour(number: int) -> str:
    return f"s{number % COLOURS}"


def _empty(title: str) -> Html:
    return _figure(title, element("p", "No values were recorded.", class_="quiet"))
