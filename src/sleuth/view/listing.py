"""Lists of trajectories and questions: rows are found through the indexes and read by offset."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sleuth.gateway.calls import count_forks
from sleuth.http.responses import HttpProblem
from sleuth.records import Outcome
from sleuth.runs.trajectory import InvalidRow, segment_rows
from sleuth.view.jsonl import Tree, contains_text, parse_trajectory
from sleuth.view.trajectory_files import (
    Offsets,
    TrajectoryFile,
    TrajectoryFiles,
    TrajectoryFilter,
    TrajectoryId,
    TrajectoryIndex,
    total_rows,
)

TIME_BUDGET = 0.4  # seconds per response for indexing, and again for text search
MAX_ROWS = 500  # maximum number of trajectories of one question
MEANS = ("reward", "em", "searches")

Order = Literal["new", "old"]


def brief(at: TrajectoryId, row: Mapping[str, Any]) -> Tree:
    score = row.get("score") or {}
    parts, turns, segments = score.get("parts"), row.get("turns") or [], segment_rows(row)
    tokens = sum(len(segment.get("ids") or ()) for segment in segments)
    # Replies of a frozen helper model belong to no segment.
    last: Mapping[str, Any] = next((turn for turn in reversed(turns) if turn.get("segment", 0) is not None), {})
    answer = last.get("answer") if last.get("action") == "answer" else None
    if tokens:
        runs = (run for segment in segments for run in segment.get("origin") or ())
        sampled: int | None = sum(int(count) for origin, count in runs if origin == "sampled")
    else:  # a chat server may have reported its own counts
        sampled = sum(int(each.get("tokens") or 0) for each in turns) or None
    return {
        "at": str(at),
        "step": at.step,
        "row": at.row,
        "group": row.get("group"),
        "sample": row.get("sample"),
        "question_id": row.get("question_id"),
        "data_source": row.get("data_source"),
        "question": row.get("question"),
        "golden_answers": row.get("golden_answers") or [],
        "answer": answer if isinstance(answer, str) else None,
        "stop": row.get("stop"),
        "failure": row.get("failure"),
        "reward": score.get("total"),
        "em": (parts or {}).get("em"),
        "parts": parts,
        "searches": sum(each.get("action") == "search" and each.get("outcome") == Outcome.FOUND for each in turns),
        "turns": len(turns),
        "tokens": tokens,
        "tokens_sampled": sampled,
        "segments": len(segments),
        "forks": count_forks([segment.get("role") or "" for segment in segments]),
        "reward_by": None if row.get("reward") is None else "agent",
        "roles": list(dict.fromkeys(segment["role"] for segment in segments if segment.get("role"))),
        "broken": None,
    }


@dataclass(frozen=True, slots=True)
class RowLine:
    file: TrajectoryFile
    row: int
    start: int
    text: bytes

    def brief(self) -> Tree:
        """Return the list entry of a row; for an invalid row, only its location and the problem in `broken`."""
        at = TrajectoryId(self.file.step, self.row)
        try:
            return brief(at, parse_trajectory(self.text))
        except InvalidRow as error:
            problem = self.file.describe_invalid(self.row, self.start, error)
            return {"at": str(at), "step": at.step, "row": at.row, "broken": problem}


@dataclass(frozen=True, slots=True)
class Matches:
    """Matching rows of one file, ascending; if `offsets` is None, row offsets are read from the offsets file."""

    file: TrajectoryFile
    rows: NDArray[np.int64]
    offsets: Offsets | None

    def select(self, chosen: slice | NDArray[np.bool_]) -> "Matches":
        return Matches(self.file, self.rows[chosen], None if self.offsets is None else self.offsets[chosen])

    def lines(self, files: TrajectoryFiles) -> Iterator[RowLine]:
        offsets = files.offsets(self.file)[self.rows] if self.offsets is None else self.offsets
        lines = files.lines(self.file.name, offsets)
        for row, start, line in zip(self.rows, offsets, lines, strict=True):
            yield RowLine(self.file, int(row), int(start), line)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Matches in list order among the rows indexed so far; `of` is the total number of rows, None if unknown."""

    matches: list[Matches]
    indexed: int
    of: int | None
    complete: bool

    @property
    def total(self) -> int:
        return sum(len(each.rows) for each in self.matches)

    @property
    def progress(self) -> Tree:
        return {"rows": self.indexed, "of": self.indexed if self.complete else self.of}


def search(
    files: TrajectoryFiles, wanted: TrajectoryFilter, order: Order = "new", budget: float = TIME_BUDGET
) -> SearchResult:
    """Find matching rows, extending incomplete indexes for up to `budget` seconds."""
    until = time.monotonic() + budget
    included = [file for file in files.files() if wanted.includes_step(file.step)]
    matches, indexed, complete = [], 0, True
    for file in included[::-1] if order == "new" else included:
        if not wanted.needs_index and file.rows is not None:
            matches.append(Matches(file, np.arange(file.rows), None))
            indexed += file.rows
            continue
        with files.lock:
            index, whole = files.index(file, until)
            rows = wanted.rows(index)
            if len(rows):
                matches.append(Matches(file, rows, index.columns()["start"][rows]))
            indexed, complete = indexed + index.rows, complete and whole
    return SearchResult(matches, indexed, total_rows(included), complete)


def trajectory_page(
    files: TrajectoryFiles,
    wanted: TrajectoryFilter,
    *,
    order: Order = "new",
    limit: int = 50,
    after: TrajectoryId | None = None,
) -> Tree:
    """Return up to `limit` matching trajectories after the cursor `after`, and the cursor of the next page."""
    found = search(files, wanted, order)
    remaining = found.matches
    if after is not None:
        remaining = [
            each.select(each.rows > after.row) if each.file.step == after.step else each
            for each in remaining
            if each.file.step == after.step or (each.file.step < after.step) == (order == "new")
        ]
    if wanted.text is None:
        rows = first_rows(files, remaining, limit)
        more = sum(len(each.rows) for each in remaining) > limit
        following = rows[-1]["at"] if more and rows else None
    else:
        rows, following = _search_text(files, remaining, wanted.text.lower(), limit)
    return {
        "total": None if wanted.text is not None else found.total,
        "complete": found.complete,
        "indexed": found.progress,
        "next": following,
        "rows": rows,
    }


def first_rows(files: TrajectoryFiles, matches: Iterable[Matches], limit: int) -> list[Tree]:
    rows: list[Tree] = []
    for each in matches:
        if len(rows) >= limit:
            break
        rows += [line.brief() for line in each.select(slice(limit - len(rows))).lines(files)]
    return rows


def _search_text(
    files: TrajectoryFiles, matches: Sequence[Matches], needle: str, limit: int
) -> tuple[list[Tree], str | None]:
    """Return rows that contain a text, until the page is full or time is up, and the next cursor."""
    until, rows = time.monotonic() + TIME_BUDGET, list[Tree]()
    for each in matches:
        for line in each.lines(files):
            if contains_text(line.text, needle):
                rows.append(line.brief())
            if len(rows) == limit or time.monotonic() > until:
                return rows, str(TrajectoryId(line.file.step, line.row))
    return rows, None


def question_page(files: TrajectoryFiles, text: str | None, first: int, limit: int) -> Tree:
    until, complete, rows = time.monotonic() + TIME_BUDGET, True, 0
    texts: dict[tuple[str, str], str] = {}
    totals: dict[tuple[str, str], NDArray[np.float64]] = {}  # trajectories, trajectories with a reward, sum of rewards
    for file in files.files():
        with files.lock:
            index, whole = files.index(file, until)
            for (source, name, question), counts in zip(index.questions, _question_totals(index), strict=True):
                texts.setdefault((source, name), question)
                totals[source, name] = totals.get((source, name), 0.0) + counts
            complete, rows = complete and whole, rows + index.rows
    needle = (text or "").lower()
    chosen = [key for key in texts if needle in f"{texts[key]} {key[1]}".lower()]
    chosen.sort(key=lambda key: (-totals[key][0], key))
    return {
        "complete": complete,
        "indexed": {"rows": rows, "of": rows if complete else total_rows(files.files())},
        "total": len(chosen),
        "rows": [
            {
                "question_id": key[1],
                "data_source": key[0],
                "question": texts[key],
                "trajectories": int(totals[key][0]),
                "reward": totals[key][2] / totals[key][1] if totals[key][1] else None,
            }
            for key in chosen[first : first + limit]
        ],
    }


def _question_totals(index: TrajectoryIndex) -> NDArray[np.float64]:
    """For each question: the number of trajectories, the number with a known reward, and the sum of rewards."""
    columns, size = index.columns(), len(index.questions)
    numbers, rewards = columns["question"], columns["reward"]
    known = ~np.isnan(rewards)
    counts = np.bincount(numbers[numbers >= 0], minlength=size)  # invalid rows have -1
    rewarded = np.bincount(numbers[known], minlength=size)
    return np.stack([counts, rewarded, np.bincount(numbers[known], weights=rewards[known], minlength=size)], axis=1)


def question_history(files: TrajectoryFiles, question: str, source: str | None) -> Tree:
    found = search(files, TrajectoryFilter(question=question, source=source), "old")
    rows = [row for row in first_rows(files, found.matches, MAX_ROWS) if row["broken"] is None]
    if not found.total and found.complete:
        raise HttpProblem(404, f"{files.folder.id} has no trajectory of question {question[:200]!r}")
    steps = []
    for step, part in groupby(rows, key=lambda row: int(row["step"])):
        samples = list(part)
        usable = [row for row in samples if row["reward"] is not None]
        values = {name: [row[name] for row in usable if row[name] is not None] for name in MEANS}
        means = {name: sum(each) / len(each) if each else None for name, each in values.items()}
        steps.append({"step": step, "samples": len(samples), "usable": len(usable), **means, "rows": samples})
    first = rows[0] if rows else {}
    return {
        "question_id": question,
        "data_source": first.get("data_source"),
        "question": first.get("question"),
        "golden_answers": first.get("golden_answers", []),
        "complete": found.complete,
        "indexed": found.progress,
        "left_out": found.total - len(rows),
        "steps": steps,
    }
