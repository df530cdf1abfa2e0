"""The report of an evaluation: its figures by set and by kind, some of its episodes, and its stamp."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sleuth.page.bars import bar_chart
from sleuth.page.change import estimate
from sleuth.page.document import document, section
from sleuth.page.number import duration, interval, short
from sleuth.page.table import pairs, table
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
        element("p", _MEANING, class_="quiet"),
        *(element("p", note) for note in notes),
        section("By set", _tables(rows, known, "Set"), _charts(rows, known)),
        *([section("By kind of question", _tables(kinds, known, "Kind"))] if kinds else []),
        section("Transcripts", *(transcript(row) for row in transcripts)),
        section("How this was measured", pairs(list(_leaves(results["stamp"])))),
    )


def _headline(results: Tree) -> Html:
    several = len(results["sets"]) > 1
    headline = results["mean"].get("em") if several else results.get("em")
    figures = [
        ("Exact match", interval(estimate(headline)), "mean over the sets" if several else "all questions"),
        ("Questions", short(results["questions"]), f"{short(results['unusable'])} unusable"),
        ("Time", duration(results.get("wall_seconds")), "spent asking"),
    ]
    cards = (
        element(
            "div",
            element("span", name, class_="label"),
            element("span", figure, class_="big"),
            element("div", note, class_="quiet"),
            class_="card",
        )
        for name, figure, note in figures
    )
    return element("div", *cards, class_="cards")


def _rows(results: Tree) -> Iterator[tuple[str, Tree]]:
    yield from results["sets"].items()
    counts = {name: results[name] for name in ("questions", "unusable")}
    if len(results["sets"]) > 1:
        yield "mean over the sets", {**results["mean"], **counts}
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
    charts = (
        bar_chart(known[name], [known[name]], [(label, [estimate(part.get(name))]) for label, part in rows], high=1.0)
        for name in SHARES
        if name in known
    )
    return element("div", *charts, class_="charts")


def _leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else short(value)
