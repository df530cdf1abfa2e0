"""The curves of a training run, drawn from the rows of its metrics file."""

from collections.abc import Mapping, Sequence
from typing import Any

from sleuth.page.axis import drawable
from sleuth.page.chart import Mark, Rule, Series, line_chart, smoothed
from sleuth.page.figure import COLOURS
from sleuth.page.text import Html, element
from sleuth.records import Estimate

Rows = Sequence[Mapping[str, Any]]

_TRENDS = (
    ("Reward", "reward/mean"),
    ("Searches a question", "episode/searches"),
    ("Tokens a response", "episode/tokens"),
    ("Entropy of the policy", "policy/entropy"),
    ("Gradient norm", "policy/gradient_norm"),
    ("Logprob of right answers", "policy/likelihood_right"),
    ("Episodes without an answer", "episode/answerless"),
    ("Malformed episodes", "episode/malformed"),
)
_NEGATIVE = ("policy/likelihood_right",)
_HELD_OUT = "evaluate/"
_LONG = 12  # steps from which a smoothed curve says more than the raw one


def curves(
    rows: Rows, held_out: Mapping[float, Estimate], ceiling: Estimate | None, marks: Sequence[Mark] = ()
) -> Html:
    """Every chart of a run; `held_out` adds the evaluations around training, by step, to those in the rows."""
    charts = [exact_match(rows, held_out, ceiling, marks)]
    charts += [
        line_chart(title, trend(rows, key), marks=marks, low=None if key in _NEGATIVE else 0)
        for title, key in _TRENDS
        if _recorded(rows, key)
    ]
    charts += [
        _by_kind(rows, "em", "Held-out exact match by kind", 1.0),
        _by_kind(rows, "searches", "Held-out searches by kind"),
    ]
    charts.append(_seconds(rows))
    return element("div", *charts, class_="charts")


def exact_match(
    rows: Rows, held_out: Mapping[float, Estimate], ceiling: Estimate | None, marks: Sequence[Mark] = ()
) -> Html:
    """Exact match in training and on held-out questions, with the level the expert reaches."""
    asked = _evaluations(rows) | dict(held_out)
    steps = sorted(asked)
    evaluated = Series(
        "held out, greedy (95% band)",
        steps,
        [asked[step].value for step in steps],
        [asked[step].low for step in steps],
        [asked[step].high for step in steps],
        colour=1,
    )
    rules = [Rule("the expert's ceiling", ceiling.value, colour=2)] if ceiling else []
    series = trend(rows, "episode/em", "training, sampled")
    drawn = [*series, evaluated] if steps else series
    return line_chart("Exact match", drawn, rules=rules, marks=marks, low=0.0, high=1.0)


def trend(rows: Rows, key: str, name: str = "each step", colour: int = 0) -> list[Series]:
    """One metric: its values, and in a run long enough their running mean with the values faint behind it."""
    x, y = _column(rows, key)
    if len(x) < _LONG:
        return [Series(name, x, y, colour=colour)]
    window = max(3, len(x) // 12)
    mean = Series(f"mean of {window} steps", x, smoothed(y, window), colour=colour)
    return [Series(name, x, y, faint=True, colour=colour), mean]


def _by_kind(rows: Rows, part: str, title: str, high: float | None = None) -> Html:
    """Held-out curves, one for each kind of question the metrics tell apart; nothing before there are two points."""
    prefix = f"{_HELD_OUT}{part}_"
    keys = [key for key in _keys(rows, prefix) if key.removeprefix(prefix) not in ("low", "high")]
    if not any(len(_column(rows, key)[0]) > 1 for key in keys):
        return Html("")
    kinds = [(key.removeprefix(prefix).replace("_", " "), *_column(rows, key)) for key in keys]
    series = [Series(name, x, y, colour=colour) for colour, (name, x, y) in enumerate(kinds)]
    return line_chart(title, series[:COLOURS], low=0.0, high=high)


def _seconds(rows: Rows) -> Html:
    """Where the time of a step goes: the parts that take most, and the whole."""
    means = {key: _mean(rows, key) for key in _keys(rows, "time/")}
    largest = sorted(means, key=lambda key: -means[key])[:COLOURS]
    series = [
        Series(key.removeprefix("time/").replace("_", " "), *_column(rows, key), colour=colour)
        for colour, key in enumerate(largest)
    ]
    return line_chart("Seconds a step", series, low=0.0)


def _evaluations(rows: Rows) -> dict[float, Estimate]:
    """The held-out exact match recorded on the way, by step; without bounds the band has no width."""
    key = f"{_HELD_OUT}em"
    known = [(row, row[key]) for row in rows if drawable(row.get(key))]
    return {
        row["step"]: Estimate(value, row.get(f"{key}_low", value), row.get(f"{key}_high", value), 0)
        for row, value in known
    }


def _column(rows: Rows, key: str) -> tuple[list[float], list[float | None]]:
    """Steps and values of the rows that have the metric; a value that is no number stays as a gap."""
    known = [(row["step"], row[key]) for row in rows if key in row]
    return [step for step, _ in known], [value if drawable(value) else None for _, value in known]


def _mean(rows: Rows, key: str) -> float:
    values = [value for value in _column(rows, key)[1] if value is not None]
    return sum(values) / len(values) if values else 0.0


def _keys(rows: Rows, prefix: str) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))


def _recorded(rows: Rows, key: str) -> bool:
    return any(key in row for row in rows)
