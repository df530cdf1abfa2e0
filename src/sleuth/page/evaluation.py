"""The report of an evaluation: its figures by set and by kind, some of its episodes, and its stamp."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sleuth.page.bars import bar_chart
from sleuth.page.card import cards
from sleuth.page.change import estimate
from sleuth.page.document import document, section
from sleuth.page.number import duration, interval, short
from sleuth.page.table import leaves, pairs, table
from sleuth.page.text import Html, element
from sleuth.page.transcript import transcript

Tree = Mapping[str, Any]
SHARES = ("em", "f1", "cover_em", "judge")  # measures that are drawn as bars

_MEANING = (
    "Brackets hold 95% intervals: Wilson's for shares of questions, a bootstrap for other means; for the mean over the "
    "sets those of the sets are joined. Unusable questions were lost to a failed search or engine and are "
    "in no mean."
)


def evaluation_page(
    results: Tree, measures: Mapping[str, str], notes: Sequence[str], transcripts: Sequence[Tree]
) -> Html:
    """The whole report as one page; `measures` are the names of columns, in their order."""
    known = {name: label for name, label in measures.items() if name in results}
    rows = list(_rows(results))
    kinds = [*results["kinds"].items(), ("all", results)] if results["kinds"] else []
    return document(
        results["title"],
        _headline(results),
        *(element("p", note) for note in notes),
        element("p", _MEANING, class_="note"),
        section("By set", _charts(rows, known) if len(rows) > 1 else "", _tables(rows, known, "Set")),
        *([section("By kind of question", _charts(kinds, known), _tables(kinds, known, "Kind"))] if kinds else []),
        section("Transcripts", *map(transcript, transcripts)),
        section("How this was measured", pairs(list(leaves(results["stamp"])))),
        kind="Sleuth · evaluation",
    )


def _headline(results: Tree) -> Html:
    several = len(results["sets"]) > 1
    headline = results["mean"].get("em") if several else results.get("em")
    figures = [
        ("Exact match", interval(estimate(headline)), "mean over the sets" if several else "all questions"),
        ("Questions", short(results["questions"]), f"{short(results['unusable'])} unusable"),
        ("Time", duration(results.get("wall_seconds")), "spent asking"),
    ]
    return cards(figures)


def _rows(results: Tree) -> Iterator[tuple[str, Tree]]:
    """A row a set; where there are several, the mean over them and all their questions as one."""
    yield from results["sets"].items()
    if len(results["sets"]) > 1:
        yield "mean over the sets", {**results["mean"], **{name: results[name] for name in ("questions", "unusable")}}
        yield "all", results


def _tables(rows: Sequence[tuple[str, Tree]], known: Mapping[str, str], first: str) -> Html:
    """Answers and episodes one below the other: side by side they would not fit a page."""
    answers = {name: label for name, label in known.items() if name in SHARES}
    episodes = {name: label for name, label in known.items() if name not in SHARES}
    counted = [
        [
            label,
            short(part["questions"]),
            short(part["unusable"]),
            *(interval(estimate(part.get(name))) for name in answers),
        ]
        for label, part in rows
    ]
    described = [[label, *(_cell(part.get(name)) for name in episodes)] for label, part in rows]
    return element(
        "div",
        table([first, "Questions", "Unusable", *answers.values()], counted),
        table([first, *episodes.values()], described) if episodes else "",
    )


def _cell(mean: Tree | None) -> str:
    found = estimate(mean)
    return interval(found, 0 if found is not None and abs(found.value) >= 100 else 2)


def _charts(rows: Sequence[tuple[str, Tree]], known: Mapping[str, str]) -> Html:
    names = [name for name in SHARES if name in known]
    groups = [(label, [estimate(part.get(name)) for name in names]) for label, part in rows]
    return element("div", bar_chart("Answers", [known[name] for name in names], groups, high=1.0), class_="charts")
