"""What training changed, kind by kind, read from the summary of a run and shown as a table and as bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sleuth.page.bars import bar_chart
from sleuth.page.number import interval, short
from sleuth.page.table import table
from sleuth.page.text import Html, element
from sleuth.records import Estimate

ALL = "all"
_HEADER = ("Kind", "Questions", "EM before", "EM after", "Gain", "Searches before", "Searches after")
_CEILING = "The expert's ceiling"


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of question before and after training; None is what the summary does not tell."""

    kind: str
    before: Estimate | None
    after: Estimate | None
    gain: Estimate | None
    ceiling: Estimate | None
    searches_before: Estimate | None
    searches_after: Estimate | None


def estimate(written: Any) -> Estimate | None:
    """An estimate read back from JSON; a bare number is one without an interval."""
    match written:
        case {"value": float() | int() as value, "low": float() | int() as low, "high": float() | int() as high}:
            return Estimate(float(value), float(low), float(high), int(written.get("count") or 0))
        case int() | float():
            return Estimate(float(written), float(written), float(written), 0)
        case _:
            return None


def changes(summary: Mapping[str, Any]) -> list[Change]:
    """The change of every kind in the summary, and last the change over all questions."""
    ceiling = summary.get("ceiling") or {}
    levels, searches = ceiling.get("by_hops") or {}, summary.get("searches_by_hops") or {}
    kinds = summary.get("em_by_hops") or {}
    found = [_change(kind, entry, levels.get(kind), searches.get(kind) or {}) for kind, entry in kinds.items()]
    overall = {"before": summary.get("em_before"), "after": summary.get("em_after"), "gain": summary.get("em_gain")}
    return [*found, _change(ALL, overall, ceiling.get("em"), searches.get(ALL) or {})]


def change_table(found: Sequence[Change]) -> Html:
    """A row for each kind with intervals; the ceiling has a column where one is known."""
    limited = any(change.ceiling for change in found)
    header = [*_HEADER[:5], *([_CEILING] if limited else []), *_HEADER[5:]]
    return table(header, [_row(change, limited) for change in found])


def change_charts(found: Sequence[Change]) -> Html:
    """Exact match and searches as bars, before beside after beside the ceiling."""
    limited = any(change.ceiling for change in found)
    names = ["before", "after", *([_CEILING.lower()] if limited else [])]
    matches = [(each.kind, [each.before, each.after, each.ceiling][: len(names)]) for each in found]
    searched = [each for each in found if each.searches_before or each.searches_after]
    used = [(each.kind, [each.searches_before, each.searches_after]) for each in searched]
    charts = [bar_chart("Exact match", names, matches, high=1.0)]
    charts += [bar_chart("Searches a question", names[:2], used)] if used else []
    return element("div", *charts, class_="charts")


def _change(kind: str, match: Mapping[str, Any], ceiling: Any, searches: Mapping[str, Any]) -> Change:
    before, after, gain = (estimate(match.get(name)) for name in ("before", "after", "gain"))
    used = (estimate(searches.get(name)) for name in ("before", "after"))
    return Change(kind, before, after, gain, estimate(ceiling), *used)


def _row(change: Change, limited: bool) -> list[object]:
    known = change.after or change.before
    used = [None if each is None else round(each.value, 2) for each in (change.searches_before, change.searches_after)]
    return [
        change.kind,
        short(known.count if known else None),
        interval(change.before),
        interval(change.after),
        _gain(change.gain),
        *([interval(change.ceiling)] if limited else []),
        *(short(each) for each in used),
    ]


def _gain(gain: Estimate | None) -> Html:
    """A difference, marked only where its interval excludes zero."""
    if gain is None or gain.low <= 0 <= gain.high:
        return element("span", interval(gain, sign=True))
    return element("strong", interval(gain, sign=True), class_="good" if gain.low > 0 else "bad")
