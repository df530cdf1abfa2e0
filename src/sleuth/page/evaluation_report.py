"""HTML report of an evaluation: figures by data set and kind, transcripts, and the stamp."""

from collections.abc import Mapping, Sequence
from typing import Any

from sleuth.page.charts import bar_chart
from sleuth.page.document import (
    Html,
    Section,
    cards,
    document,
    duration,
    element,
    flatten,
    interval,
    pairs,
    read_estimate,
    short,
    table,
)
from sleuth.page.transcript import transcript

Tree = Mapping[str, Any]
PROPORTIONS = ("em", "f1", "cover_em", "judge")  # measures drawn as bars

NOTE = (
    "Brackets hold 95% intervals: Wilson intervals for proportions, bootstrap intervals for other means. The interval "
    "of the mean over the sets combines those of the sets. Unusable questions, whose search or engine failed, are "
    "excluded from all means."
)


# Figures of abstaining and their labels, in display order.
ABSTENTION = {
    "rate": 'answered "I don\'t know"',
    "coverage": "answered otherwise (coverage)",
    "precision": "exact match among those answered (precision)",
    "em_answerable": "exact match on answerable questions",
    "recall": "abstained on unanswerable questions (recall)",
    "abstention_precision": "unanswerable among abstentions (precision)",
    "right": "right: exact match, or abstained on an unanswerable question",
}


def abstention_rows(results: Tree) -> list[tuple[str, str, str]]:
    """Return a row per figure of abstaining: label, mean with interval, number of questions."""
    written = results.get("abstention") or {}
    found = {label: read_estimate(written.get(name)) for name, label in ABSTENTION.items()}
    return [(label, interval(each), f"{each.count:,}") for label, each in found.items() if each is not None]


def evaluation_page(
    results: Tree, measures: Mapping[str, str], notes: Sequence[str], transcripts: Sequence[Tree]
) -> Html:
    """Build the report page; `measures` maps measures to column headings."""
    known = {name: label for name, label in measures.items() if name in results}
    rows = rows_by_set(results)[: None if len(results["sets"]) > 1 else 1]
    kinds = [*results["kinds"].items(), ("all", results)] if results["kinds"] else []
    several, abstained = len(results["sets"]) > 1, abstention_rows(results)
    exact_match = read_estimate(results["mean"].get("em") if several else results.get("em"))
    headline = [
        ("Exact match", interval(exact_match), "mean over the sets" if several else "all questions"),
        ("Questions", short(results["questions"]), f"{short(results['unusable'])} unusable"),
        ("Time", duration(results.get("wall_seconds")), "to answer all questions"),
    ]
    return document(
        results["title"],
        cards(headline),
        *(element("p", note) for note in notes),
        element("p", NOTE, class_="note"),
        Section("By set", _charts(rows, known) if len(rows) > 1 else "", _tables(rows, known, "Set")),
        *([Section("By kind of question", _charts(kinds, known), _tables(kinds, known, "Kind"))] if kinds else []),
        *([Section("Abstaining", table(["", "Mean", "Questions"], abstained))] if abstained else []),
        Section("Transcripts", *map(transcript, transcripts)),
        Section("How this was measured", pairs(list(flatten(results["stamp"])))),
        kind="Sleuth · evaluation",
    )


def rows_by_set(results: Tree) -> list[tuple[str, Tree]]:
    """Return a row per data set, the mean over the data sets if there are several, and a row for all questions."""
    rows = list(results["sets"].items())
    if len(rows) > 1:
        sizes = {name: results[name] for name in ("questions", "unusable")}
        rows.append(("mean over the sets", {**results["mean"], **sizes}))
    return [*rows, ("all", results)]


def _tables(rows: Sequence[tuple[str, Tree]], known: Mapping[str, str], first: str) -> Html:
    """Build two tables, answers above episodes; a single table would not fit on a page."""
    answers = {name: label for name, label in known.items() if name in PROPORTIONS}
    episodes = {name: label for name, label in known.items() if name not in PROPORTIONS}
    counts = ("questions", "unusable")
    answer_rows = [
        [label, *(short(part[name]) for name in counts), *(interval(read_estimate(part.get(name))) for name in answers)]
        for label, part in rows
    ]
    episode_rows: list[list[str]] = []
    for label, part in rows:
        means = [read_estimate(part.get(name)) for name in episodes]
        episode_rows.append([label, *(interval(each, 0 if each and abs(each.value) >= 100 else 2) for each in means)])
    return element(
        "div",
        table([first, "Questions", "Unusable", *answers.values()], answer_rows),
        table([first, *episodes.values()], episode_rows) if episodes else "",
    )


def _charts(rows: Sequence[tuple[str, Tree]], known: Mapping[str, str]) -> Html:
    names = [name for name in PROPORTIONS if name in known]
    groups = [(label, [read_estimate(part.get(name)) for name in names]) for label, part in rows]
    return element("div", bar_chart("Answers", [known[name] for name in names], groups, high=1.0), class_="charts")
