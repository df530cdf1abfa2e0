"""Two evaluations side by side, question by question; how they are compared is given, since that is another room's."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from sleuth.errors import InputError
from sleuth.http.responses import HttpProblem
from sleuth.view.archive import PATIENCE, Archive, At
from sleuth.view.line import Tree
from sleuth.view.roots import Shown

# Two folders, and whether only the questions that both have are compared; the figures, and `pairs` of questions.
Compare = Callable[[Path, Path, bool], Mapping[str, Any]]
Show = Literal["all", "won", "lost", "same", "unknown"]

MARKS, RESULTS = "marks.jsonl", "results.json"
HELD = 4
FIGURES = ("questions", "left_out", "unusable", "mean", "all", "sets")


@dataclass(slots=True)
class Comparisons:
    """Comparisons made lately; `measures` names what is measured, of `counts` more is neither better nor worse."""

    compare: Compare
    measures: Mapping[str, str]
    counts: Sequence[str]
    _held: "OrderedDict[tuple[Any, ...], Mapping[str, Any]]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def of(self, first: Shown, second: Shown, common: bool) -> Mapping[str, Any]:
        """The comparison of two finished evaluations as they are now."""
        key = (*_stamp(first), *_stamp(second), common)
        with self._lock:
            if key not in self._held:
                self._held[key] = self._compared(first, second, common)
                while len(self._held) > HELD:
                    self._held.popitem(last=False)
            self._held.move_to_end(key)
            return self._held[key]

    def _compared(self, first: Shown, second: Shown, common: bool) -> Mapping[str, Any]:
        try:
            return self.compare(first.path, second.path, common)
        except InputError as error:
            raise HttpProblem(400, str(error)) from error


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which rows of a comparison are asked for."""

    measure: str = "em"
    show: Show = "all"
    source: str | None = None
    first: int = 0
    limit: int = 50


def page(found: Mapping[str, Any], archives: tuple[Archive, Archive], chosen: Chosen) -> Tree:
    """The figures of a comparison and a page of its questions."""
    pairs = [pair for pair in found["pairs"] if chosen.source in (None, pair["data_source"])]
    changes = [_change(pair, chosen.measure) for pair in pairs]
    shown = [(pair, change) for pair, change in zip(pairs, changes, strict=True) if chosen.show in ("all", change)]
    return {
        "first": {"id": archives[0].shown.id, "name": archives[0].shown.path.name},
        "second": {"id": archives[1].shown.id, "name": archives[1].shown.path.name},
        "measure": chosen.measure,
        **{name: found[name] for name in FIGURES},
        "tally": {each: changes.count(each) for each in ("won", "lost", "same", "unknown")},
        "show": chosen.show,
        "total": len(shown),
        "rows": [
            _row(pair, change, archives, chosen.measure)
            for pair, change in shown[chosen.first : chosen.first + chosen.limit]
        ],
    }


def _row(pair: Mapping[str, Any], change: str, archives: tuple[Archive, Archive], measure: str) -> Tree:
    sides = {
        side: {
            "answer": pair[side]["answer"],
            "value": (pair[side]["values"] or {}).get(measure),
            "values": pair[side]["values"],
            "stop": pair[side]["stop"],
            "at": _at(archive, pair["data_source"], pair["id"]),
        }
        for side, archive in zip(("first", "second"), archives, strict=True)
    }
    about = {name: pair[name] for name in ("id", "data_source", "question", "golden_answers")}
    return {**about, "change": change, **sides}


def _change(pair: Mapping[str, Any], measure: str) -> str:
    first, second = ((pair[side]["values"] or {}).get(measure) for side in ("first", "second"))
    if first is None or second is None:
        return "unknown"
    return "won" if second > first else "lost" if second < first else "same"


def _at(archive: Archive, source: str, question_id: str) -> str | None:
    """The trajectory of a question: its last, and where one is usable the last of those."""
    leaves = archive.leaves()
    if not leaves:
        return None
    with archive.lock:
        catalogue, _ = archive.catalogue(leaves[0], time.monotonic() + PATIENCE)
        row = catalogue.row_of(source, question_id)
    return None if row is None else str(At(0, row))


def _stamp(shown: Shown) -> tuple[Any, ...]:
    """What changes when an evaluation does."""
    stamp: list[Any] = [shown.id]
    for name in (MARKS, RESULTS):
        path = shown.there(name)
        if path is None:
            raise HttpProblem(
                400, f"{shown.id} is not finished: it has no {name}; finish it with sleuth evaluate first"
            )
        stat = path.stat()
        stamp += [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    return tuple(stamp)
