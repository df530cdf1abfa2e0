"""Comparison of two evaluations, question by question; the function that compares them is passed in."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from sleuth.errors import InputError
from sleuth.http.responses import HttpProblem
from sleuth.view.jsonl import Tree
from sleuth.view.library import ViewedFolder
from sleuth.view.trajectory_files import INDEX_TIMEOUT, TrajectoryFiles, TrajectoryId

# Two folders and whether to compare common questions only; returns figures and `pairs` of questions.
Compare = Callable[[Path, Path, bool], Mapping[str, Any]]
Change = Literal["all", "won", "lost", "same", "unknown"]

CACHED = 4
FIGURES = ("questions", "left_out", "unusable", "mean", "all", "sets")


class ComparisonCache:
    """Recent comparisons; `measures` maps measures to labels, `counts` are those where higher is not better."""

    def __init__(self, compare: Compare, measures: Mapping[str, str], counts: Sequence[str]) -> None:
        self.measures, self.counts = measures, counts
        # The stamps of the files are part of the key only.
        self._compare = lru_cache(maxsize=CACHED)(
            lambda first, second, common, stamps: compare(first, second, common)  # noqa: ARG005
        )

    def load(self, first: ViewedFolder, second: ViewedFolder, common: bool) -> Mapping[str, Any]:
        """Compare two finished evaluations; recomputed when their files change."""
        stamps = (*_file_stamps(first), *_file_stamps(second))
        try:
            return self._compare(first.path, second.path, common, stamps)
        except InputError as error:
            raise HttpProblem(400, str(error)) from error


def comparison_page(
    found: Mapping[str, Any],
    files: tuple[TrajectoryFiles, TrajectoryFiles],
    *,
    measure: str,
    show: Change,
    source: str | None,
    first: int,
    limit: int,
) -> Tree:
    pairs = [pair for pair in found["pairs"] if source in (None, pair["data_source"])]
    changes = []
    for pair in pairs:
        before, after = ((pair[side]["values"] or {}).get(measure) for side in ("first", "second"))
        if before is None or after is None:
            changes.append("unknown")
        else:
            changes.append("won" if after > before else "lost" if after < before else "same")
    shown = [(pair, change) for pair, change in zip(pairs, changes, strict=True) if show in ("all", change)]
    sides = {
        side: {"id": each.folder.id, "name": each.folder.path.name}
        for side, each in zip(("first", "second"), files, strict=True)
    }
    return {
        **sides,
        "measure": measure,
        **{name: found[name] for name in FIGURES},
        "tally": {each: changes.count(each) for each in ("won", "lost", "same", "unknown")},
        "show": show,
        "total": len(shown),
        "rows": [_row(pair, change, files, measure) for pair, change in shown[first:][:limit]],
    }


def _row(pair: Mapping[str, Any], change: str, files: tuple[TrajectoryFiles, TrajectoryFiles], measure: str) -> Tree:
    sides = {
        side: {
            "answer": pair[side]["answer"],
            "value": (pair[side]["values"] or {}).get(measure),
            "values": pair[side]["values"],
            "stop": pair[side]["stop"],
            "at": _find_trajectory(each, pair["data_source"], pair["id"]),
        }
        for side, each in zip(("first", "second"), files, strict=True)
    }
    about = {name: pair[name] for name in ("id", "data_source", "question", "golden_answers")}
    return {**about, "change": change, **sides}


def _find_trajectory(files: TrajectoryFiles, source: str, question_id: str) -> str | None:
    every = files.files()
    if not every:
        return None
    with files.lock:
        index, _ = files.index(every[0], time.monotonic() + INDEX_TIMEOUT)
        row = index.row_of(source, question_id)
    return None if row is None else str(TrajectoryId(0, row))


def _file_stamps(folder: ViewedFolder) -> tuple[Any, ...]:
    stamps: list[Any] = []
    for name in ("marks.jsonl", "results.json"):
        path = folder.find(name)
        if path is None:
            raise HttpProblem(
                400, f"{folder.id} is not finished: it has no {name}; finish it with `sleuth evaluate` first"
            )
        stat = path.stat()
        stamps += [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    return tuple(stamps)
