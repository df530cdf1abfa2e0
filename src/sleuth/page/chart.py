"""Line charts as inline SVG: several series, gaps where a value is missing, bands, rules and tooltips."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from sleuth.page.axis import Axis, axis, drawable
from sleuth.page.figure import empty, figure, legend, paint, picture
from sleuth.page.number import short
from sleuth.page.text import Html, element, joined

HEIGHT = 230
LEFT, RIGHT, TOP, BOTTOM = 50, 400, 10, 190
_MARKED = 24  # series with fewer points show each of them
_COLUMNS = 120  # tooltips a chart at most: more would be narrower than a pointer

Numbers = Sequence[float | None]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A named curve; `low` and `high` bound its band, and `colour` is the number of its colour."""

    name: str
    x: Sequence[float]
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    faint: bool = False
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A level drawn across the whole chart."""

    name: str
    value: float
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on the x axis at which something happened."""

    name: str
    x: float


@dataclass(frozen=True, slots=True)
class _Frame:
    x: Axis
    y: Axis


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    rules: Sequence[Rule] = (),
    marks: Sequence[Mark] = (),
    x_label: str = "step",
    low: float | None = None,
    high: float | None = None,
) -> Html:
    """A figure with the curves over a common axis; without a single number it says so instead of drawing."""
    levels = [rule for rule in rules if drawable(rule.value)]
    frame = _frame(series, levels, low, high)
    if frame is None:
        return empty(title)
    drawn = [
        *_grid(frame, x_label),
        *(_band(frame, each) for each in series),
        *(_rule(frame, rule) for rule in levels),
        *(_line(frame, each) for each in series),
        *_columns(frame, series, x_label),
        *(_mark(frame, mark, x_label) for mark in marks if frame.x.low <= mark.x <= frame.x.high),
    ]
    return figure(title, legend(_keys(series, levels)), picture(title, HEIGHT, drawn))


def smoothed(values: Numbers, window: int) -> list[float | None]:
    """The mean of the last `window` values at each place, gaps left out; a gap stays where nothing is known."""
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - window) : end] if value is not None and drawable(value)]
        means.append(sum(known) / len(known) if known and drawable(values[end - 1]) else None)
    return means


def _frame(series: Sequence[Series], rules: Sequence[Rule], low: float | None, high: float | None) -> _Frame | None:
    points = [point for each in series for run in _runs(each.x, each.y) for point in run]
    if not points:
        return None
    edges = [bound for each in series for line in (each.low, each.high) if line for bound in line if bound is not None]
    heights = [y for _, y in points] + [rule.value for rule in rules] + [edge for edge in edges if drawable(edge)]
    across = axis((x for x, _ in points), LEFT, RIGHT, whole=True, rounded=False)
    return _Frame(across, axis(heights, BOTTOM, TOP, low=low, high=high))


def _runs(x: Sequence[float], y: Numbers) -> Iterator[list[Point]]:
    """The stretches between gaps."""
    points = zip(x, y, strict=True)
    for known, run in groupby(points, key=lambda point: drawable(point[0]) and drawable(point[1])):
        if known:
            yield [(at, value) for at, value in run if value is not None]


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
    edges = list(zip(series.x, series.low, series.high, strict=True))
    parts = []
    for known, run in groupby(edges, key=lambda edge: all(drawable(value) for value in edge)):
        if known:
            bounds = [(x, low, high) for x, low, high in run if low is not None and high is not None]
            outline = [(x, high) for x, _, high in bounds] + [(x, low) for x, low, _ in reversed(bounds)]
            parts.append(_path(frame, outline) + "Z")
    return element("path", d="".join(parts), class_=f"band {paint(series.colour)}") if parts else Html("")


def _rule(frame: _Frame, rule: Rule) -> Html:
    height = frame.y.place(rule.value)
    tip = element("title", f"{rule.name}: {short(rule.value)}")
    return element("line", tip, x1=LEFT, x2=RIGHT, y1=height, y2=height, class_=f"stroke rule {paint(rule.colour)}")


def _mark(frame: _Frame, mark: Mark, x_label: str) -> Html:
    """A thin line with a foot broad enough to point at; it lies above the columns."""
    place = frame.x.place(mark.x)
    tip = element("title", f"{x_label} {short(mark.x)}: {mark.name}")
    return element("path", tip, d=f"M{place:g},{TOP}V{BOTTOM}m-4,0h8l-4,-7z", class_="mark-line")


def _line(frame: _Frame, series: Series) -> Html:
    runs = list(_runs(series.x, series.y))
    look = _look(series)
    sparse = sum(len(run) for run in runs) <= _MARKED
    marked = [point for run in runs if sparse or len(run) == 1 for point in run]
    dots = [
        element("circle", cx=frame.x.place(x), cy=frame.y.place(y), r=2.5, class_=f"fill {look}") for x, y in marked
    ]
    path = "".join(_path(frame, run) for run in runs if len(run) > 1)
    return joined([element("path", d=path, class_=f"stroke {look}") if path else Html(""), *dots])


def _path(frame: _Frame, points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{frame.x.place(x):g},{frame.y.place(y):g}" for x, y in points)


def _columns(frame: _Frame, series: Sequence[Series], x_label: str) -> Iterator[Html]:
    """Invisible columns over the places that have values: pointing at one tells all of them."""
    points = [(each.name, x, y) for each in series for run in _runs(each.x, each.y) for x, y in run]
    count = min(_COLUMNS, len({x for _, x, _ in points}))
    columns: dict[int, list[tuple[str, float, float]]] = {}
    for point in points:
        share = (frame.x.place(point[1]) - LEFT) / (RIGHT - LEFT)
        columns.setdefault(min(count - 1, int(share * count)), []).append(point)
    width = (RIGHT - LEFT) / count
    for place, held in sorted(columns.items()):
        left = round(LEFT + place * width, 2)
        tip = element("title", _tip(x_label, held))
        yield element("rect", tip, x=left, y=TOP, width=round(width, 2), height=BOTTOM - TOP, class_="column")


def _tip(x_label: str, held: Sequence[tuple[str, float, float]]) -> str:
    """The steps under one column, and the last value of each curve there."""
    first, last = min(x for _, x, _ in held), max(x for _, x, _ in held)
    latest = {name: y for name, _, y in held}
    place = short(first) if first == last else f"{short(first)}–{short(last)}"
    return "\n".join([f"{x_label} {place}", *(f"{name}: {short(y)}" for name, y in latest.items())])


def _keys(series: Sequence[Series], rules: Sequence[Rule]) -> list[tuple[str, Html]]:
    looks = [(each.name, _look(each)) for each in series]
    looks += [(rule.name, f"rule {paint(rule.colour)}") for rule in rules]
    return [(name, element("path", d="M1,6H27", class_=f"stroke {look}")) for name, look in looks]


def _look(series: Series) -> str:
    return f"{paint(series.colour)}{' faint' if series.faint else ''}"
