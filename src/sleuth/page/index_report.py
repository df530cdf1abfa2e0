"""HTML report of an index check: coverage of the corpus, recall of the search, and missed questions."""

from collections.abc import Mapping
from typing import Any

from sleuth.page.charts import bar_chart
from sleuth.page.document import (
    Html,
    Section,
    cards,
    document,
    element,
    flatten,
    folded,
    interval,
    pairs,
    read_estimate,
    short,
    table,
)
from sleuth.records import Estimate

Tree = Mapping[str, Any]
Sets = Mapping[str, Tree]

_NOTE = (
    "The query is the question itself. Coverage is the share of questions with an answer somewhere in the corpus. "
    "Recall is the share of a question's gold passages among its top k hits. Hit is the share of questions with an "
    "answer in one of the top k hits. Brackets hold 95% intervals over the questions."
)


def index_page(title: str, manifest: Tree, checked: Tree) -> Html:
    sets: Sets = checked["sets"]
    depths = next((list(part["hit"]) for part in sets.values() if part["hit"]), [])
    return document(
        title,
        _headline(checked, depths),
        element("p", _NOTE, class_="note"),
        Section("Search results", _charts(sets, depths), _tables(sets, depths)),
        Section("Corpus", _corpus(checked["corpus"])),
        Section("Answers in the corpus that were not found", *map(_missed, checked["worst"])),
        Section("How this index was built", pairs(list(flatten(manifest)))),
        kind="Sleuth · index check",
    )


def _headline(checked: Tree, depths: list[Any]) -> Html:
    overall = list(checked["sets"].values())[-1]  # all questions
    figures = [
        ("Coverage", *_split(read_estimate(overall["coverage"])), "of the questions have an answer in the corpus")
    ]
    for k in depths[1:2]:  # three hits
        figures += [
            (f"{name}@{k}", *_split(_at(overall[measure], k)), note)
            for name, measure, note in (
                ("Recall", "recall", "of the gold passages"),
                ("Hit", "hit", "of the questions"),
            )
            if overall[measure]
        ]
    counts = [("Questions", short(overall["questions"])), ("Passages", short(checked["corpus"]["passages"]))]
    return cards([*figures, *counts])


def _split(mean: Estimate | None) -> tuple[str, str]:
    value, _, bounds = interval(mean, 2).partition(" ")
    return value, bounds


def _tables(sets: Sets, depths: list[Any]) -> Html:
    """Build two tables, recall above hits; a single table would not fit on a page."""

    def cells(measured: Tree | None) -> list[str]:
        return [interval(_at(measured, k), 2) for k in depths]

    recall = [
        [name, short(part["questions"]), interval(read_estimate(part["coverage"]), 2), *cells(part["recall"])]
        for name, part in sets.items()
    ]
    hits = [[name, *cells(part["hit"])] for name, part in sets.items()]
    failed = list(sets.values())[-1]["unavailable"]
    caption = f"{failed:,} questions whose search failed are excluded from recall and hits" if failed else None
    return element(
        "div",
        table(["Set", "Questions", "Coverage", *(f"Recall@{k}" for k in depths)], recall, caption),
        table(["Set", *(f"Hit@{k}" for k in depths)], hits),
    )


def _charts(sets: Sets, depths: list[Any]) -> Html:
    charts = [
        bar_chart(
            name,
            [f"@{k}" for k in depths],
            [(label, [_at(part[measure], k) for k in depths]) for label, part in sets.items()],
            high=1.0,
        )
        for name, measure in (("Gold recall", "recall"), ("Answer hit", "hit"))
        if any(part[measure] for part in sets.values())
    ]
    return element("div", *charts, class_="charts")


def _at(measured: Tree | None, k: Any) -> Estimate | None:
    return read_estimate(measured[k]) if measured else None


def _corpus(corpus: Tree) -> Html:
    facts = [
        ("passages", short(corpus["passages"])),
        ("without text", short(corpus["empty"])),
        ("duplicates", short(corpus["duplicates"])),
        ("gold passages of the questions", f"{short(corpus['gold_here'])} of {short(corpus['gold'])}"),
        *((f"words, {name}", short(words)) for name, words in corpus["words"].items()),
    ]
    counts = [(name, [Estimate(count, count, count, 0)]) for name, count in corpus["lengths"]]
    return element("div", pairs(facts), bar_chart("Passages by words", ["passages"], counts), class_="charts")


def _missed(probe: Tree) -> Html:
    answers = element("p", f"answers: {', '.join(probe['golden_answers'])}", class_="quiet")
    hits = [[hit["title"], hit["id"], f"{hit['score']:.3f}"] for hit in probe["hits"]]
    found = table(["Hit", "Id", "Score"], hits) if hits else element("p", "Nothing was found.", class_="quiet")
    return element("article", folded(probe["question"], answers, found), class_="transcript")
