"""The report of an index check: whether the corpus holds the answers, and whether the search finds them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sleuth.page.bars import bar_chart
from sleuth.page.card import cards
from sleuth.page.change import estimate
from sleuth.page.document import document, folded, section
from sleuth.page.number import interval, short
from sleuth.page.table import leaves, pairs, table
from sleuth.page.text import Html, element
from sleuth.records import Estimate

Tree = Mapping[str, Any]

_MEANING = (
    "Every question was searched for as it stands. Coverage is the share of questions one of whose answers stands in "
    "the corpus at all; recall the share of a question's gold passages among its best k hits; a hit means that an "
    "answer stands in one of them. Brackets hold 95% intervals over the questions."
)


def index_page(title: str, manifest: Tree, checked: Tree) -> Html:
    """The whole report as one page."""
    return document(
        title,
        _headline(checked),
        element("p", _MEANING, class_="note"),
        section("What the search finds", _charts(checked["sets"]), _tables(checked["sets"])),
        section("The corpus", _corpus(checked["corpus"])),
        section("Answers that are there and were not found", *map(_missed, checked["worst"])),
        section("How this index was made", pairs(list(leaves(manifest)))),
        kind="Sleuth · index check",
    )


def _headline(checked: Tree) -> Html:
    """What holds over all questions, which are the last of the sets; of the depths the second, three hits."""
    every = list(checked["sets"].values())[-1]
    k = next(iter(_depths(checked["sets"])[1:2]), None)
    return cards(
        [
            ("Coverage", *_figure(estimate(every["coverage"])), "of the questions have an answer in the corpus"),
            *(
                (f"{name}@{k}", *_figure(_at(every[measure], k)), of)
                for name, measure, of in (
                    ("Recall", "recall", "of the gold passages"),
                    ("Hit", "hit", "of the questions"),
                )
                if k is not None and every[measure]
            ),
            ("Questions", short(every["questions"])),
            ("Passages", short(checked["corpus"]["passages"])),
        ]
    )


def _figure(mean: Estimate | None) -> tuple[str, str]:
    value, _, bounds = interval(mean, 2).partition(" ")
    return value, bounds


def _tables(sets: Mapping[str, Tree]) -> Html:
    """Recall and hits one below the other: side by side they would not fit a page."""
    depths = _depths(sets)
    found = [
        [name, short(part["questions"]), interval(estimate(part["coverage"]), 2), *_cells(part["recall"], depths)]
        for name, part in sets.items()
    ]
    hits = [[name, *_cells(part["hit"], depths)] for name, part in sets.items()]
    return element(
        "div",
        table(["Set", "Questions", "Coverage", *(f"Recall@{k}" for k in depths)], found, _lost(sets)),
        table(["Set", *(f"Hit@{k}" for k in depths)], hits),
    )


def _cells(measured: Mapping[Any, Any] | None, depths: list[Any]) -> list[str]:
    return [interval(_at(measured, k), 2) for k in depths]


def _lost(sets: Mapping[str, Tree]) -> str | None:
    """What is in no mean; the last of the sets is all of them."""
    lost = list(sets.values())[-1]["unavailable"]
    return f"{lost:,} questions got no answer from the search and are in no recall or hit" if lost else None


def _charts(sets: Mapping[str, Tree]) -> Html:
    depths = _depths(sets)
    charts = [
        bar_chart(name, [f"@{k}" for k in depths], [(each, bars) for each, bars in _bars(sets, measure)], high=1.0)
        for name, measure in (("Gold recall", "recall"), ("Answer hit", "hit"))
        if any(part[measure] for part in sets.values())
    ]
    return element("div", *charts, class_="charts")


def _bars(sets: Mapping[str, Tree], measure: str) -> list[tuple[str, Sequence[Estimate | None]]]:
    depths = _depths(sets)
    return [(name, [_at(part[measure], k) for k in depths]) for name, part in sets.items()]


def _depths(sets: Mapping[str, Tree]) -> list[Any]:
    return next((list(part["hit"]) for part in sets.values() if part["hit"]), [])


def _at(measured: Mapping[Any, Any] | None, k: Any) -> Estimate | None:
    return estimate(measured[k]) if measured else None


def _corpus(corpus: Tree) -> Html:
    facts = [
        ("passages", short(corpus["passages"])),
        ("without text", short(corpus["empty"])),
        ("repeating another", short(corpus["duplicates"])),
        ("gold passages of the questions in it", f"{short(corpus['gold_here'])} of {short(corpus['gold'])}"),
        *((f"words, {name}", short(words)) for name, words in corpus["words"].items()),
    ]
    counts = [(name, [Estimate(count, count, count, 0)]) for name, count in corpus["lengths"]]
    return element("div", pairs(facts), bar_chart("Passages by words", ["passages"], counts), class_="charts")


def _missed(probe: Tree) -> Html:
    gold = f"answers: {', '.join(probe['golden_answers'])}"
    hits = [[hit["title"], hit["id"], f"{hit['score']:.3f}"] for hit in probe["hits"]]
    found = table(["Hit", "Id", "Score"], hits) if hits else element("p", "Nothing was found.", class_="quiet")
    opening = folded(probe["question"], element("p", gold, class_="quiet"), found)
    return element("article", opening, class_="transcript")
