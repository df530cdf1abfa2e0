"""What training changed, kind by kind, read from the summary of a run and shown as a table and as bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sleuth.page.bars import bar_chart
from sleuth.page.number import ABSENT, interval, short
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
    asked: int | None = None


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
    overall["questions"] = (summary.get("held_out") or {}).get("questions")
    return [*found, _change(ALL, overall, ceiling.get("em"), searches.get(ALL) or {})]


def over(before: Estimate | None, after: Estimate | None, asked: int | None, arrow: str = "→") -> str:
    """How many questions two figures are over: one number where none was lost, else `99 → 98 of 100`."""
    counts = [each.count for each in (before, after) if each is not None]
    if len(set(counts)) == 1 and asked in (None, counts[0]):
        return short(counts[0])
    return f" {arrow} ".join(map(short, counts)) + (f" of {short(asked)}" if counts and asked is not None else "")


def losses(summary: Mapping[str, Any]) -> list[str]:
    """Sentences for the held-out questions that were lost to failures; none where none was."""
    held_out = summary.get("held_out") or {}
    lost, asked = held_out.get("lost") or {}, held_out.get("questions")
    found = []
    if lost:
        parts = [
            f"{when.replace('_', ' ')}, {sum(each.values())} of {asked} ({_reasons(each)})"
            for when, each in lost.items()
        ]
        found.append(f"Lost to failures that are not the model's, and in no figure: {'; '.join(parts)}.")
    gain = estimate(summary.get("em_gain"))
    if gain is not None and asked is not None and gain.count < asked:
        found.append(f"The gain is over the {short(gain.count)} questions that were usable both times.")
    if kinds := held_out.get("kinds_without_pairs"):
        found.append(f"No question of these kinds was usable both times: {', '.join(kinds)}.")
    return found


def _reasons(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in counted.items())


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
    first, last = (estimate(searches.get(name)) for name in ("before", "after"))
    return Change(kind, before, after, gain, estimate(ceiling), first, last, match.get("questions"))


def _row(change: Change, limited: bool) -> list[object]:
    used = [None if each is None else round(each.value, 2) for each in (change.searches_before, change.searches_after)]
    return [
        change.kind,
        over(change.before, change.after, change.asked) or ABSENT,
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
