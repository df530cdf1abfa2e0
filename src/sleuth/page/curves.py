"""Charts of a training run, drawn from its metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

from sleuth.page.charts import COLOURS, Marker, Rule, Series, drawable, line_chart, smoothed
from sleuth.page.markup import Html, element
from sleuth.records import Estimate

Rows = Sequence[Mapping[str, Any]]

_TRENDS = (
    ("Reward", "reward/mean"),
    ("Searches per question", "episode/searches"),
    ("Tokens per response", "episode/tokens"),
    ("Policy entropy", "policy/entropy"),
    ("Gradient norm", "policy/gradient_norm"),
    ("Logprob of right answers", "policy/likelihood_right"),
    ("Episodes without an answer", "episode/answerless"),
    ("Malformed episodes", "episode/malformed"),
)
_NEGATIVE = ("policy/likelihood_right",)
_HELD_OUT = "evaluate/"
_SMOOTH_FROM = 12  # number of steps from which a running mean is drawn


def curves(
    rows: Rows, held_out: Mapping[float, Estimate], ceiling: Estimate | None, markers: Sequence[Marker] = ()
) -> Html:
    """All charts of a run; `held_out` adds the evaluations before and after training, by step."""
    charts = [exact_match(rows, held_out, ceiling, markers)]
    charts += [
        line_chart(title, trend(rows, key), markers=markers, low=None if key in _NEGATIVE else 0)
        for title, key in _TRENDS
        if any(key in row for row in rows)
    ]
    charts += [
        _by_kind(rows, "em", "Held-out exact match by kind", 1.0),
        _by_kind(rows, "searches", "Held-out searches by kind"),
        _step_time(rows),
    ]
    return element("div", *charts, class_="charts")


def exact_match(
    rows: Rows, held_out: Mapping[float, Estimate], ceiling: Estimate | None, markers: Sequence[Marker] = ()
) -> Html:
    """Exact match in training and on held-out questions, with the expert ceiling."""
    key = f"{_HELD_OUT}em"
    recorded = {
        row["step"]: Estimate(row[key], row.get(f"{key}_low", row[key]), row.get(f"{key}_high", row[key]), 0)
        for row in rows
        if drawable(row.get(key))
    }
    evaluations = dict(sorted((recorded | dict(held_out)).items()))
    series = trend(rows, "episode/em", "training, sampled")
    if evaluations:
        found = evaluations.values()
        low, high = [each.low for each in found], [each.high for each in found]
        name = "held out, greedy (95% band)"
        series.append(Series(name, list(evaluations), [each.value for each in found], low, high, colour=1))
    rules = [Rule("expert ceiling", ceiling.value, colour=2)] if ceiling else []
    return line_chart("Exact match", series, rules=rules, markers=markers, low=0.0, high=1.0)


def trend(rows: Rows, key: str, name: str = "each step", colour: int = 0) -> list[Series]:
    """Values of a metric; in a longer run also their running mean, with the values faint."""
    x, y = _column(rows, key)
    if len(x) < _SMOOTH_FROM:
        return [Series(name, x, y, colour=colour)]
    window = max(3, len(x) // 12)
    mean = Series(f"mean of {window} steps", x, smoothed(y, window), colour=colour)
    return [Series(name, x, y, faint=True, colour=colour), mean]


def _by_kind(rows: Rows, part: str, title: str, high: float | None = None) -> Html:
    """Held-out curves by kind of question; empty until one has two points."""
    prefix = f"{_HELD_OUT}{part}_"
    keys = [key for key in _keys(rows, prefix) if key.removeprefix(prefix) not in ("low", "high")]
    kinds = {key.removeprefix(prefix): _column(rows, key) for key in keys}
    if not any(len(x) > 1 for x, _ in kinds.values()):
        return Html("")
    series = [
        Series(kind.replace("_", " "), x, y, colour=colour) for colour, (kind, (x, y)) in enumerate(kinds.items())
    ]
    return line_chart(title, series[:COLOURS], low=0.0, high=high)


def _step_time(rows: Rows) -> Html:
    """Seconds per step of the slowest parts."""
    columns = {key: _column(rows, key) for key in _keys(rows, "time/")}

    def mean(key: str) -> float:
        known = [value for value in columns[key][1] if value is not None]
        return sum(known) / len(known) if known else 0.0

    largest = sorted(columns, key=lambda key: -mean(key))[:COLOURS]
    series = [
        Series(key.removeprefix("time/").replace("_", " "), *columns[key], colour=colour)
        for colour, key in enumerate(largest)
    ]
    return line_chart("Seconds per step", series, low=0.0)


def _column(rows: Rows, key: str) -> tuple[list[float], list[float | None]]:
    """Steps and values of the rows that have the metric; a value that cannot be drawn is a gap."""
    known = [(row["step"], row[key]) for row in rows if key in row]
    return [step for step, _ in known], [value if drawable(value) else None for _, value in known]


def _keys(rows: Rows, prefix: str) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))
