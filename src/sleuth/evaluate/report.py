"""The results of an evaluation as Markdown for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from sleuth.evaluate.results import MEASURES

_INTERVALS = (
    "Brackets hold 95% intervals: Wilson's for shares of questions, a bootstrap for other means; for the mean over the "
    "sets those of the sets are joined."
)
_UNUSABLE = "Unusable questions were lost to a failed search or engine and are in no mean."

Tree = Mapping[str, Any]
# Means that are shown without their interval, which results.json and the page have, and with how many digits.
DIGITS = {"format": 3, "retrieval_hit": 3, "searches": 2, "tokens": 1, "tokens_all": 1, "seconds": 2}


def markdown(results: Tree) -> str:
    """A heading, a table by set, one by kind where kinds are known, and what the figures are made with."""
    lines = [f"# {results['title']}", "", *_table(_by_set(results), results)]
    if results["kinds"]:
        lines += ["", *_table([*results["kinds"].items(), ("all", results)], results, "Kind")]
    lines += ["", _INTERVALS, _UNUSABLE, *notes(results)]
    return "\n".join(lines) + "\n"


def notes(results: Tree) -> list[str]:
    """What a reader must know besides the figures, a line each."""
    failed = results.get("unjudged") or 0
    stops = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in (results.get("stops") or {}).items())
    return [
        *([results["sample"]["sentence"]] if results.get("sample") else []),
        *(results.get("notes") or ()),
        *([f"How the episodes ended: {stops}."] if stops else []),
        *([f"The judge gave no verdict on {failed:,} questions; they are in no mean of it."] if failed else []),
    ]


def _by_set(results: Tree) -> list[tuple[str, Tree]]:
    rows = list(results["sets"].items())
    if len(rows) > 1:
        whole = {"questions": results["questions"], "unusable": results["unusable"]}
        rows.append(("mean over the sets", {**results["mean"], **whole}))
    return [*rows, ("all", results)]


def _table(rows: Sequence[tuple[str, Tree]], results: Tree, first: str = "Set") -> list[str]:
    measures = [name for name in MEASURES if name in results]
    header = (first, "Questions", *(MEASURES[name] for name in measures), "Unusable")
    lines = [header, ("---", *["---:"] * (len(header) - 1))]
    lines += [
        (label, f"{part['questions']:,}", *(_mean(name, part.get(name)) for name in measures), f"{part['unusable']:,}")
        for label, part in rows
    ]
    return [_line(cells) for cells in lines]


def _mean(name: str, mean: Tree | None) -> str:
    """Answers with their interval; of what describes the episodes the mean alone, or no screen is wide enough."""
    if mean is None:
        return "–"
    if name in DIGITS:
        return f"{mean['value']:,.{DIGITS[name]}f}"
    return f"{mean['value']:.3f} [{mean['low']:.3f}, {mean['high']:.3f}]"


def _line(cells: Sequence[str]) -> str:
    # A data source may hold any character; a bar would end its cell.
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
