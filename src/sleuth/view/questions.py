"""Questions of an archive: which were asked, and how one and the same fared over the steps."""

import time
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from sleuth.http.responses import HttpProblem
from sleuth.view.archive import Archive
from sleuth.view.catalogue import Catalogue
from sleuth.view.line import Tree
from sleuth.view.listing import BUDGET, rows_of, survey
from sleuth.view.wanted import Wanted

MOST_ROWS = 500
MEANS = ("reward", "em", "searches")


@dataclass(slots=True)
class _Asked:
    """How often a question was asked, and what it earned where that is known."""

    source: str
    question_id: str
    question: str
    count: int = 0
    paid: int = 0
    reward: float = 0.0

    def row(self) -> Tree:
        return {
            "question_id": self.question_id,
            "data_source": self.source,
            "question": self.question,
            "trajectories": self.count,
            "reward": self.reward / self.paid if self.paid else None,
        }


def asked(archive: Archive, text: str | None, first: int, limit: int) -> Tree:
    """The questions that have trajectories, the most often asked first, with a text in them where one is given."""
    until, complete, rows = time.monotonic() + BUDGET, True, 0
    found: dict[tuple[str, str], _Asked] = {}
    for leaf in archive.leaves():
        with archive.lock:
            catalogue, whole = archive.catalogue(leaf, until)
            _count(catalogue, found)
            complete, rows = complete and whole, rows + catalogue.rows
    needle = (text or "").lower()
    chosen = [each for each in found.values() if needle in f"{each.question} {each.question_id}".lower()]
    chosen.sort(key=lambda each: (-each.count, each.source, each.question_id))
    return {
        "complete": complete,
        "indexed": {"rows": rows, "of": rows if complete else archive.count()},
        "total": len(chosen),
        "rows": [each.row() for each in chosen[first : first + limit]],
    }


def over_steps(archive: Archive, question: str, source: str | None) -> Tree:
    """The trajectories of one question, step by step, with the means of each step."""
    seen = survey(archive, Wanted(question=question, source=source), "old")
    rows = [row for row in rows_of(archive, seen.found, MOST_ROWS) if row["broken"] is None]
    if not seen.total and seen.complete:
        raise HttpProblem(404, f"{archive.shown.id} has no trajectory of the question {question[:200]!r}")
    first = rows[0] if rows else {}
    return {
        "question_id": question,
        "data_source": first.get("data_source"),
        "question": first.get("question"),
        "golden_answers": first.get("golden_answers", []),
        "complete": seen.complete,
        "indexed": seen.progress,
        "left_out": seen.total - len(rows),
        "steps": [_step(step, list(part)) for step, part in groupby(rows, key=lambda row: int(row["step"]))],
    }


def _count(catalogue: Catalogue, found: dict[tuple[str, str], _Asked]) -> None:
    """Adds the rows of a file to the counts."""
    columns, size = catalogue.columns(), len(catalogue.questions)
    known = ~np.isnan(columns["reward"])
    # A row that is no trajectory asks no question, which is a number below zero.
    counts = np.bincount(columns["question"][columns["question"] >= 0], minlength=size)
    paid = np.bincount(columns["question"][known], minlength=size)
    sums = np.bincount(columns["question"][known], weights=columns["reward"][known], minlength=size)
    for number, (source, question_id, question) in enumerate(catalogue.questions):
        each = found.setdefault((source, question_id), _Asked(source, question_id, question))
        each.count += int(counts[number])
        each.paid += int(paid[number])
        each.reward += float(sums[number])


def _step(step: int, rows: list[Tree]) -> Tree:
    usable = [row for row in rows if row["reward"] is not None]
    means = {name: _mean([row[name] for row in usable if row[name] is not None]) for name in MEANS}
    return {"step": step, "samples": len(rows), "usable": len(usable), **means, "rows": rows}


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
