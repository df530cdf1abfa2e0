"""A page of a list of trajectories: found by the catalogues, read from the files by the places of its rows only."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sleuth.runs.trajectory import InvalidRow
from sleuth.view.archive import Archive, At, Leaf, broken
from sleuth.view.brief import brief, unread
from sleuth.view.catalogue import Starts
from sleuth.view.line import Tree, parsed, says
from sleuth.view.wanted import Wanted

BUDGET = 0.4  # seconds that one answer spends on reading what is not in a catalogue yet, and again on looking for text

Order = Literal["new", "old"]


@dataclass(frozen=True, slots=True)
class Found:
    """The wanted rows of one file, ascending, with the places where they begin; None: those of the offsets file."""

    leaf: Leaf
    rows: NDArray[np.int64]
    starts: Starts | None

    def only(self, chosen: slice | NDArray[np.bool_]) -> "Found":
        return Found(self.leaf, self.rows[chosen], None if self.starts is None else self.starts[chosen])

    def lines(self, archive: Archive) -> Iterator["Line"]:
        """The lines of the rows."""
        starts = archive.starts(self.leaf)[self.rows] if self.starts is None else self.starts
        for row, start, line in zip(self.rows, starts, archive.lines(self.leaf, starts), strict=True):
            yield Line(self.leaf, int(row), int(start), line)


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a file as it was read."""

    leaf: Leaf
    row: int
    start: int
    written: bytes

    @property
    def at(self) -> At:
        return At(self.leaf.step, self.row)

    def brief(self) -> Tree:
        """What a list shows of it; of one that is no trajectory, that it is none."""
        try:
            return brief(self.at, parsed(self.written))
        except InvalidRow as error:
            return unread(self.at, broken(self.leaf, self.row, self.start, error))


@dataclass(frozen=True, slots=True)
class Survey:
    """The wanted rows of every file in the order of the list, as far as the catalogues go."""

    found: list[Found]
    known: int
    of: int | None
    complete: bool

    @property
    def total(self) -> int:
        return sum(len(each.rows) for each in self.found)

    @property
    def progress(self) -> Tree:
        """How much of the files is known; `of` is null where only reading tells."""
        return {"rows": self.known, "of": self.known if self.complete else self.of}


def survey(archive: Archive, wanted: Wanted, order: Order = "new", budget: float = BUDGET) -> Survey:
    """The rows that are wanted; catalogues are read on for `budget` seconds where they are needed."""
    until = time.monotonic() + budget
    leaves = [leaf for leaf in archive.leaves() if wanted.covers(leaf)]
    ordered = leaves[::-1] if order == "new" else leaves
    found, known, complete = [], 0, True
    for leaf in ordered:
        if wanted.plain and leaf.rows is not None:
            found.append(Found(leaf, np.arange(leaf.rows), None))
            known += leaf.rows
            continue
        with archive.lock:
            catalogue, whole = archive.catalogue(leaf, until)
            rows = wanted.rows(catalogue)
            if len(rows):
                found.append(Found(leaf, rows, catalogue.columns()["start"][rows]))
            known, complete = known + catalogue.rows, complete and whole
    counts = [leaf.rows for leaf in leaves]
    of = None if None in counts else sum(count or 0 for count in counts)
    return Survey(found, known, of, complete)


def page(archive: Archive, wanted: Wanted, *, order: Order = "new", limit: int = 50, after: At | None = None) -> Tree:
    """The rows of a list after a trajectory, at most `limit`, and where the next page begins."""
    seen = survey(archive, wanted, order)
    remaining = _after(seen.found, after, order)
    if wanted.text is None:
        taken = _first(remaining, limit)
        more = sum(len(each.rows) for each in remaining) > limit
        rows = list(_read(archive, taken))
        following = rows[-1]["at"] if more and rows else None
    else:
        rows, following = _searched(archive, remaining, wanted.text.lower(), limit)
    return {
        "total": None if wanted.text is not None else seen.total,
        "complete": seen.complete,
        "indexed": seen.progress,
        "next": following,
        "rows": rows,
    }


def rows_of(archive: Archive, found: Sequence[Found], limit: int) -> list[Tree]:
    """The first rows of what was found, in brief."""
    return list(_read(archive, _first(found, limit)))


def _after(found: Sequence[Found], after: At | None, order: Order) -> list[Found]:
    if after is None:
        return list(found)
    kept = []
    for each in found:
        step = each.leaf.step
        if step == after.step:
            kept.append(each.only(each.rows > after.row))
        elif (step < after.step) == (order == "new"):
            kept.append(each)
    return kept


def _first(found: Sequence[Found], limit: int) -> Iterator[Found]:
    for each in found:
        if limit <= 0:
            return
        yield each.only(slice(limit))
        limit -= len(each.rows)


def _read(archive: Archive, found: Iterator[Found]) -> Iterator[Tree]:
    for each in found:
        yield from (line.brief() for line in each.lines(archive))


def _searched(archive: Archive, found: Sequence[Found], needle: str, limit: int) -> tuple[list[Tree], str | None]:
    """Rows with a text, looked for until the page is full or the time is up; then where to go on."""
    until, rows = time.monotonic() + BUDGET, list[Tree]()
    for each in found:
        for line in each.lines(archive):
            if says(line.written, needle):
                rows.append(line.brief())
            if len(rows) == limit or time.monotonic() > until:
                return rows, str(line.at)
    return rows, None
