"""In-memory index of a trajectories file: the offset of each row and the columns that filters use.

A growing file is read incrementally; a replaced one is read again. Rows are those named by the offsets file, so that a
damaged row does not shift the others; without offsets, they are the lines. An invalid row keeps its place and matches
no filter.
"""

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sleuth.records import StopReason
from sleuth.runs.trajectory import InvalidRow
from sleuth.view.folders import ViewedFolder
from sleuth.view.jsonl import FilePosition, Line, complete_lines, next_line, parse_header

STOPS = [each.value for each in StopReason]
USABLE = [number for number, each in enumerate(StopReason) if each.usable]
INTEGERS = {"start": "Q", "length": "Q", "question": "l", "group": "q", "sample": "q", "stop": "b"}
FLOATS = {"reward": "d", "em": "d", "searches": "d"}  # NaN if not recorded
INVALID = {"question": -1, "group": -1, "sample": -1, "stop": -1, **dict.fromkeys(FLOATS, float("nan"))}
CLOCK_INTERVAL = 64  # rows between two looks at the clock

Column = NDArray[Any]
Offsets = NDArray[np.uint64]


def _empty_arrays() -> dict[str, "array[Any]"]:
    return {name: array(code) for name, code in {**INTEGERS, **FLOATS}.items()}


@dataclass(slots=True)
class TrajectoryIndex:
    """Index of a file up to `position`; rows refer to `questions` by number."""

    name: str
    inode: int = 0
    changed: int = 0
    position: FilePosition = field(default_factory=FilePosition)
    questions: list[tuple[str, str, str]] = field(default_factory=list)
    arrays: dict[str, "array[Any]"] = field(default_factory=_empty_arrays)
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    _columns: dict[str, Column] | None = None

    @property
    def rows(self) -> int:
        return len(self.arrays["start"])

    def columns(self) -> dict[str, Column]:
        """Columns with one value per row."""
        if self._columns is None or len(self._columns["start"]) != self.rows:
            self._columns = {name: np.array(each) for name, each in self.arrays.items()}
        return self._columns

    def row_of(self, source: str, question_id: str) -> int | None:
        """Row of a question: its last usable one, otherwise its last."""
        number = self._numbers.get((source, question_id))
        columns = self.columns()
        rows = np.nonzero(columns["question"] == number)[0] if number is not None else np.empty(0, dtype=np.int64)
        usable = rows[np.isin(columns["stop"][rows], USABLE)]
        chosen = usable if len(usable) else rows
        return int(chosen[-1]) if len(chosen) else None

    def is_current(self, folder: ViewedFolder, rows: int | None) -> bool:
        """Whether the whole file is indexed and unchanged; `rows` is the number of offsets, if known."""
        path = folder.find(self.name)
        if path is None or rows not in (None, self.rows):
            return False
        stat = path.stat()
        return (stat.st_ino, stat.st_size, stat.st_mtime_ns) == (self.inode, self.position.end, self.changed)

    def extend(self, folder: ViewedFolder, until: float, offsets: Offsets | None) -> bool:
        """Read on until the end of the file or a `time.monotonic` deadline; return whether the end was reached."""
        with folder.open(self.name) as file:
            stat = os.fstat(file.fileno())
            if not self._can_continue(file, stat, offsets):
                self.inode, self.changed, self.position, self.questions = stat.st_ino, 0, FilePosition(), []
                self.arrays, self._numbers, self._columns = _empty_arrays(), {}, None
            if offsets is None:
                lines = complete_lines(file, self.position.end)
            else:
                lines = _lines_at(file, offsets[self.rows :], stat.st_size)
            finished = self._add_rows(file, lines, until)
            self.changed = stat.st_mtime_ns if finished else 0
            return finished

    def _can_continue(self, file: BinaryIO, stat: os.stat_result, offsets: Offsets | None) -> bool:
        """Whether the indexed part of the file is unchanged."""
        end = self.position.end
        if stat.st_ino != self.inode or stat.st_size < end or (offsets is not None and len(offsets) < self.rows):
            return False
        rewritten = stat.st_size == end and self.changed not in (0, stat.st_mtime_ns)
        return not rewritten and self.position.matches(file)

    def _add_rows(self, file: BinaryIO, lines: Iterator[tuple[int, Line]], until: float) -> bool:
        end, finished = self.position.end, True
        for count, (start, line) in enumerate(lines, 1):
            try:
                values = self._values(line.text)
            except InvalidRow:
                values = INVALID
            for name, value in {"start": start, "length": line.size, **values}.items():
                self.arrays[name].append(value)
            end = start + line.size if line.size else end
            if count % CLOCK_INTERVAL == 0 and time.monotonic() > until:
                finished = False
                break
        self.position = FilePosition.at(file, end)
        return finished

    def _values(self, line: bytes) -> dict[str, float]:
        row = parse_header(line)
        parts = (row.score.parts if row.score is not None else None) or {}
        key = row.data_source or "", row.question_id
        if key not in self._numbers:
            self._numbers[key] = len(self.questions)
            self.questions.append((*key, row.question or ""))
        return {
            "question": self._numbers[key],
            "group": row.group,
            "sample": row.sample,
            "stop": STOPS.index(row.stop.value),
            "reward": _or_nan(row.score.total if row.score is not None else None),
            "em": _or_nan(parts.get("em")),
            "searches": _or_nan(parts.get("searches")),
        }

    def to_json(self) -> dict[str, Any]:
        """Contents for the cache on disk."""
        floats = {name: [None if x != x else x for x in self.arrays[name]] for name in FLOATS}
        integers = {name: self.arrays[name].tolist() for name in INTEGERS}
        stamp = {"inode": self.inode, "changed": self.changed, "place": asdict(self.position)}
        return {**stamp, "name": self.name, "questions": self.questions, "columns": {**integers, **floats}}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "TrajectoryIndex":
        """Index from the cache; raise ValueError, KeyError or TypeError if it is invalid."""
        found = cls(str(saved["name"]), int(saved["inode"]), int(saved["changed"]), FilePosition(**saved["place"]))
        for source, question_id, question in saved["questions"]:
            found._numbers[source, question_id] = len(found.questions)
            found.questions.append((source, question_id, question))
        for name, code in INTEGERS.items():
            found.arrays[name] = array(code, saved["columns"][name])
        for name, code in FLOATS.items():
            found.arrays[name] = array(code, map(_or_nan, saved["columns"][name]))
        if len({len(each) for each in found.arrays.values()}) != 1:
            raise ValueError("the columns of an index have different lengths")
        return found


@dataclass(frozen=True, slots=True)
class TrajectoryFilter:
    """Conditions on trajectories, all of which must hold; None or empty means any."""

    step_from: int | None = None
    step_to: int | None = None
    question: str | None = None
    source: str | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    stops: Sequence[str] = ()
    group: int | None = None
    sample: int | None = None
    text: str | None = None

    @property
    def needs_index(self) -> bool:
        """Whether a condition other than step and text is set."""
        conditions = (self.question, self.source, self.reward_min, self.reward_max, self.group, self.sample)
        return bool(self.stops) or any(each is not None for each in conditions)

    def includes_step(self, step: int) -> bool:
        return (self.step_from is None or step >= self.step_from) and (self.step_to is None or step <= self.step_to)

    def rows(self, index: TrajectoryIndex) -> NDArray[np.int64]:
        """Indexed rows that match, ascending."""
        columns = index.columns()
        mask = np.ones(index.rows, dtype=bool)
        if self.question is not None or self.source is not None:
            questions = [
                number
                for number, (source, question_id, _) in enumerate(index.questions)
                if self.question in (None, question_id) and self.source in (None, source)
            ]
            mask &= np.isin(columns["question"], questions)
        if self.stops:
            mask &= np.isin(columns["stop"], [STOPS.index(each) for each in self.stops])
        for name in ("group", "sample"):
            if (value := getattr(self, name)) is not None:
                mask &= columns[name] == value
        # Comparisons with NaN are false, so unknown rewards match no range.
        if self.reward_min is not None:
            mask &= columns["reward"] >= self.reward_min
        if self.reward_max is not None:
            mask &= columns["reward"] <= self.reward_max
        return np.nonzero(mask)[0]


def _lines_at(file: BinaryIO, offsets: Offsets, size: int) -> Iterator[tuple[int, Line]]:
    """Lines at these offsets; an empty line for an offset beyond the end."""
    for start in offsets.tolist():
        if start < size:
            file.seek(start)
        yield start, next_line(file) if start < size else Line(b"", 0, ended=False)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else float(value)
