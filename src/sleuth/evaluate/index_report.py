"""An index check as Markdown for people, JSON for programs, and a page for browsers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sleuth.evaluate.index_check import DEPTHS, IndexCheck, Part
from sleuth.page.index import index_page
from sleuth.page.number import ABSENT
from sleuth.records import Estimate
from sleuth.runs import replacing

_NOTE = (
    "Coverage: an answer stands in the corpus. Recall: share of the gold passages among the best k. Hit: an answer "
    "stands in one of them. Questions are searched for as they are; brackets hold 95% intervals."
)


def markdown(checked: IndexCheck, title: str) -> str:
    """A table by data set, and what is odd about the corpus."""
    header = ("Set", "Questions", "Coverage", *(f"Recall@{k}" for k in DEPTHS), *(f"Hit@{k}" for k in DEPTHS))
    lines = [_line(header), _line(("---", *["---:"] * (len(header) - 1)))]
    lines += [_line(_cells(name, part)) for name, part in checked.parts.items()]
    corpus = checked.corpus
    words = ", ".join(f"{name} {count:,}" for name, count in corpus.words.items())
    oddities = f"{corpus.empty:,} passages without text, {corpus.duplicates:,} that repeat another. Words: {words}."
    return f"# {title}\n\n" + "\n".join(lines) + f"\n\n{oddities}\n\n{_NOTE}\n"


def write(checked: IndexCheck, out: Path, name: str, manifest: Mapping[str, Any]) -> None:
    """Writes check.json and report.html into a new folder."""
    # Through JSON, so that the page is made from what a reader of the file sees.
    text = json.dumps(checked.as_json(), indent=2, allow_nan=False) + "\n"
    with replacing(out) as folder:
        folder.mkdir()
        (folder / "check.json").write_text(text, encoding="utf-8")
        page = index_page(f"Check of {name}", manifest, json.loads(text))
        (folder / "report.html").write_text(page, encoding="utf-8")


def _cells(name: str, part: Part) -> tuple[str, ...]:
    depths = [measured[k] if measured else None for measured in (part.recall, part.hit) for k in DEPTHS]
    return (name, f"{part.questions:,}", _mean(part.coverage), *map(_mean, depths))


def _mean(mean: Estimate | None) -> str:
    return f"{mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}]" if mean else ABSENT


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
