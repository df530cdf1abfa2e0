"""The catalogue of one trajectories file: where each row begins and what filters ask of it, made as the file is read.

A file that grows is read on from where the catalogue ends; one that was replaced is read anew. Rows are those that the
offsets beside the file name, so that a damaged one does not shift those after it; without offsets, its lines. A row
that is no trajectory keeps its place, and no filter finds it.
"""

import os
import time
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sleuth.records import StopReason
from sleuth.runs.trajectory import InvalidRow
from sleuth.view.follow import Place
from sleuth.view.line import Line, Told, next_line, told
from sleuth.view.roots import Shown

STOPS = [each.value for each in StopReason]
USABLE = [number for number, each in enumerate(StopReason) if each.usable]
CODES = {"start": "Q", "length": "Q", "question": "l", "group": "q", "sample": "q", "stop": "b"}
NUMBERS = {"reward": "d", "em": "d", "searches": "d"}  # not a number where it is not recorded
BROKEN = {"question": -1, "group": -1, "sample": -1, "stop": -1, **dict.fromkeys(NUMBERS, float("nan"))}
GLANCE = 64  # rows between two looks at the clock

Column = NDArray[Any]
Starts = NDArray[np.uint64]


@dataclass(slots=True)
class Catalogue:
    """The rows of a file up to `place`; `questions` are those of this file, rows name them by their number."""

    name: str
    inode: int = 0
    changed: int = 0
    place: Place = field(default_factory=Place)
    questions: list[tuple[str, str, str]] = field(default_factory=list)
    arrays: dict[str, "array[Any]"] = field(default_factory=lambda: _arrays())
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    _columns: dict[str, Column] | None = None

    @property
    def rows(self) -> int:
        return len(self.arrays["start"])

    def columns(self) -> dict[str, Column]:
        """The columns as they are now, each with one value a row."""
        if self._columns is None or len(self._columns["start"]) != self.rows:
            self._columns = {name: np.array(each) for name, each in self.arrays.items()}
        return self._columns

    def row_of(self, source: str, question_id: str) -> int | None:
        """The row that counts of a question: its last usable one, else its last."""
        number = self._numbers.get((source, question_id))
        columns = self.columns()
        rows = np.nonzero(columns["question"] == number)[0] if number is not None else np.empty(0, dtype=np.int64)
        usable = rows[np.isin(columns["stop"][rows], USABLE)]
        chosen = usable if len(usable) else rows
        return int(chosen[-1]) if len(chosen) else None

    def current(self, shown: Shown, rows: int | None) -> bool:
        """Whether all of the file is known, and still what it was; `rows` is how many offsets name."""
        path = shown.there(self.name)
        if path is None or rows not in (None, self.rows):
            return False
        stat = path.stat()
        return (stat.st_ino, stat.st_size, stat.st_mtime_ns) == (self.inode, self.place.end, self.changed)

    def extend(self, shown: Shown, until: float, starts: Starts | None) -> bool:
        """Reads on until the end or a moment of `time.monotonic`; true at the end."""
        with shown.open(self.name) as file:
            stat = os.fstat(file.fileno())
            if not self._goes_on(file, stat, starts):
                self._forget(stat.st_ino)
            lines = _lines(file, self.place.end) if starts is None else _named(file, starts[self.rows :], stat.st_size)
            finished = self._read(file, lines, until)
            self.changed = stat.st_mtime_ns if finished else 0
            return finished

    def _goes_on(self, file: BinaryIO, stat: os.stat_result, starts: Starts | None) -> bool:
        """Whether what is known stands in the file still, so that only the rest is to be read."""
        end = self.place.end
        if stat.st_ino != self.inode or stat.st_size < end or (starts is not None and len(starts) < self.rows):
            return False
        rewritten = stat.st_size == end and self.changed not in (0, stat.st_mtime_ns)
        return not rewritten and self.place.holds(file)

    def _read(self, file: BinaryIO, lines: Iterator[tuple[int, Line]], until: float) -> bool:
        end, finished = self.place.end, True
        for count, (start, line) in enumerate(lines, 1):
            self._add(start, line)
            end = start + line.size if line.size else end
            if count % GLANCE == 0 and time.monotonic() > until:
                finished = False
                break
        self.place = Place.at(file, end)
        return finished

    def _add(self, start: int, line: Line) -> None:
        try:
            values = self._values(told(line.text))
        except InvalidRow:  # its place in the list says what is wrong with it
            values = BROKEN
        for name, value in {"start": start, "length": line.size, **values}.items():
            self.arrays[name].append(value)

    def _values(self, row: Told) -> dict[str, float]:
        return {
            "question": self._asked(row),
            "group": row.group,
            "sample": row.sample,
            "stop": STOPS.index(row.stop),
            **{name: _number(getattr(row, name)) for name in NUMBERS},
        }

    def _asked(self, row: Told) -> int:
        key = row.source, row.question_id
        if key not in self._numbers:
            self._numbers[key] = len(self.questions)
            self.questions.append((*key, row.question))
        return self._numbers[key]

    def _forget(self, inode: int) -> None:
        self.inode, self.changed, self.place, self.questions = inode, 0, Place(), []
        self.arrays, self._numbers, self._columns = _arrays(), {}, None

    def written(self) -> dict[str, Any]:
        """The catalogue for a cache on the disk."""
        numbers = {name: [None if x != x else x for x in self.arrays[name]] for name in NUMBERS}
        codes = {name: self.arrays[name].tolist() for name in CODES}
        stamp = {"inode": self.inode, "changed": self.changed, "place": asdict(self.place)}
        return {**stamp, "name": self.name, "questions": self.questions, "columns": {**codes, **numbers}}

    @classmethod
    def read(cls, kept: dict[str, Any]) -> "Catalogue":
        """The catalogue of a cache; what is not one raises ValueError, KeyError or TypeError."""
        found = cls(str(kept["name"]), int(kept["inode"]), int(kept["changed"]), Place(**kept["place"]))
        for source, question_id, question in kept["questions"]:
            found._numbers[source, question_id] = len(found.questions)
            found.questions.append((source, question_id, question))
        for name, code in CODES.items():
            found.arrays[name] = array(code, kept["columns"][name])
        for name, code in NUMBERS.items():
            found.arrays[name] = array(code, map(_number, kept["columns"][name]))
        if len({len(each) for each in found.arrays.values()}) != 1:
            raise ValueError("columns of a catalogue have different lengths")
        return found


def _lines(file: BinaryIO, start: int) -> Iterator[tuple[int, Line]]:
    """The whole lines from a place on, each with where it begins."""
    file.seek(start)
    while (line := next_line(file)).ended:  # else it is still being written
        yield start, line
        start += line.size


def _named(file: BinaryIO, starts: Starts, size: int) -> Iterator[tuple[int, Line]]:
    """The lines that begin at these places; nothing for one beyond the end."""
    for start in starts.tolist():
        if start < size:
            file.seek(start)
        yield start, next_line(file) if start < size else Line(b"", 0, ended=False)


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _arrays() -> dict[str, "array[Any]"]:
    return {name: array(code) for name, code in {**CODES, **NUMBERS}.items()}
