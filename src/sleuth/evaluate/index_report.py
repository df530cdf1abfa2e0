"""An index check as Markdown for people, JSON for programs, and a page for browsers."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sleuth.evaluate.corpus_check import CorpusCheck
from sleuth.evaluate.index_check import DEPTHS, IndexCheck
from sleuth.page.index import index_page
from sleuth.page.number import ABSENT
from sleuth.records import Estimate
from sleuth.runs.atomic import atomic_write

_NOTE = (
    "Coverage: an answer stands in the corpus. Recall: share of the gold passages among the best k. Hit: an answer "
    "stands in one of them. Questions are searched for as they are; brackets hold 95% intervals."
)


def markdown(checked: IndexCheck, title: str) -> str:
    """Two tables by data set, narrow enough for a terminal, and what is odd about the corpus."""
    sets = checked.parts.items()
    found = [(name, f"{part.questions:,}", _mean(part.coverage), *_means(part.recall)) for name, part in sets]
    hits = [(name, *_means(part.hit)) for name, part in sets]
    corpus = checked.corpus
    words = ", ".join(f"{name} {count:,}" for name, count in corpus.words.items())
    oddities = f"{corpus.empty:,} passages without text, {corpus.duplicates:,} that repeat another. Words: {words}."
    parts = (
        f"# {title}",
        _table(("Set", "Questions", "Coverage", *(f"Recall@{k}" for k in DEPTHS)), found),
        _table(("Set", *(f"Hit@{k}" for k in DEPTHS)), hits),
        *([_gold(corpus)] if corpus.gold else []),
        oddities,
        _NOTE,
    )
    return "\n\n".join(parts) + "\n"


def _gold(corpus: CorpusCheck) -> str:
    """How many gold passages there are to be found: of others no search knows."""
    limit = "" if corpus.gold == corpus.gold_here else "; recall counts the others as not found"
    return f"{corpus.gold_here:,} of the {corpus.gold:,} gold passages are in this index{limit}."


def write(checked: IndexCheck, out: Path, name: str, manifest: Mapping[str, Any]) -> None:
    """Writes check.json and report.html into a new folder."""
    # Through JSON, so that the page is made from what a reader of the file sees.
    text = json.dumps(checked.as_json(), indent=2, allow_nan=False) + "\n"
    with atomic_write(out) as folder:
        folder.mkdir()
        (folder / "check.json").write_text(text, encoding="utf-8")
        page = index_page(name, manifest, json.loads(text))
        (folder / "report.html").write_text(page, encoding="utf-8")


def _means(measured: Mapping[int, Estimate] | None) -> list[str]:
    return [_mean(measured[k] if measured else None) for k in DEPTHS]


def _mean(mean: Estimate | None) -> str:
    return f"{mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}]" if mean else ABSENT


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    rule = ("---", *["---:"] * (len(header) - 1))
    return "\n".join(_line(cells) for cells in (header, rule, *rows))


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
