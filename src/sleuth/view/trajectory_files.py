"""Trajectory files of a run or evaluation: one per step, read by offset, with an index of the columns that filters use.

A growing file is indexed incrementally; a replaced one is read again. Rows are those named by the offsets file, so that
a damaged row does not shift the others; without offsets, they are the lines. Invalid rows match no filter.
"""

import json
import os
import sys
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sleuth.http.responses import HttpProblem
from sleuth.records import StopReason
from sleuth.runs.trajectory import InvalidRow
from sleuth.view.jsonl import FilePosition, Line, Tree, complete_lines, next_line, parse_header, parse_trajectory
from sleuth.view.library import STEP_FILE, Kind, ViewedFolder

STOPS = [each.value for each in StopReason]
USABLE = [number for number, each in enumerate(StopReason) if each.usable]
INTEGERS = {"start": "Q", "length": "Q", "question": "l", "group": "q", "sample": "q", "stop": "b", "segments": "l"}
FLOATS = {"reward": "d", "em": "d", "searches": "d"}  # NaN if not recorded
INVALID = dict.fromkeys(FLOATS, float("nan")) | dict.fromkeys(("question", "group", "sample", "stop", "segments"), -1)
CLOCK_INTERVAL = 64  # rows between checks of the deadline

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
        if self._columns is None or len(self._columns["start"]) != self.rows:
            self._columns = {name: np.array(each) for name, each in self.arrays.items()}
        return self._columns

    def row_of(self, source: str, question_id: str) -> int | None:
        """Return the last usable row of a question, otherwise its last row; None if it has no row."""
        columns = self.columns()
        rows = np.nonzero(columns["question"] == self._numbers.get((source, question_id), -2))[0]  # -1 is invalid
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
        """Index rows up to the end of the file or the `time.monotonic` deadline; return whether the end was reached."""
        with folder.open(self.name) as file:
            stat, end = os.fstat(file.fileno()), self.position.end
            shrunk = stat.st_size < end or (offsets is not None and len(offsets) < self.rows)
            rewritten = stat.st_size == end and self.changed not in (0, stat.st_mtime_ns)
            if stat.st_ino != self.inode or shrunk or rewritten or not self.position.matches(file):
                self.inode, self.changed, self.position, self.questions = stat.st_ino, 0, FilePosition(), []
                self.arrays, self._numbers, self._columns = _empty_arrays(), {}, None
            new = complete_lines(file, self.position.end) if offsets is None else _lines_at(file, offsets[self.rows :])
            finished = self._add_rows(file, new, until)
            self.changed = stat.st_mtime_ns if finished else 0
            return finished

    def _add_rows(self, file: BinaryIO, lines: Iterator[tuple[int, Line]], until: float) -> bool:
        end = self.position.end
        for count, (start, line) in enumerate(lines, 1):
            try:
                values = self._values(line.text)
            except InvalidRow:
                values = INVALID
            for name, value in {"start": start, "length": line.size, **values}.items():
                self.arrays[name].append(value)
            end = start + line.size if line.size else end
            if count % CLOCK_INTERVAL == 0 and time.monotonic() > until:
                self.position = FilePosition.at(file, end)
                return False
        self.position = FilePosition.at(file, end)
        return True

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
            "segments": 1 if row.segments is None else len(row.segments),
            "reward": _or_nan(row.score.total if row.score is not None else None),
            "em": _or_nan(parts.get("em")),
            "searches": _or_nan(parts.get("searches")),
        }

    def to_json(self) -> dict[str, Any]:
        floats = {name: [None if x != x else x for x in self.arrays[name]] for name in FLOATS}
        integers = {name: self.arrays[name].tolist() for name in INTEGERS}
        stamp = {"inode": self.inode, "changed": self.changed, "place": asdict(self.position)}
        return {**stamp, "name": self.name, "questions": self.questions, "columns": {**integers, **floats}}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "TrajectoryIndex":
        """Load an index from its cached JSON; raises ValueError, KeyError or TypeError if it is invalid."""
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
    """Filter for trajectories: all conditions must hold; None or an empty value matches everything."""

    step_from: int | None = None
    step_to: int | None = None
    question: str | None = None
    source: str | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    stops: Sequence[str] = ()
    group: int | None = None
    sample: int | None = None
    segments_min: int | None = None
    text: str | None = None

    @property
    def needs_index(self) -> bool:
        rewards, counts = (self.reward_min, self.reward_max), (self.group, self.sample, self.segments_min)
        return bool(self.stops) or any(each is not None for each in (self.question, self.source, *rewards, *counts))

    def includes_step(self, step: int) -> bool:
        return (self.step_from is None or step >= self.step_from) and (self.step_to is None or step <= self.step_to)

    def rows(self, index: TrajectoryIndex) -> NDArray[np.int64]:
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
        if self.segments_min is not None:
            mask &= columns["segments"] >= self.segments_min
        # Comparisons with NaN are false, so unknown rewards match no range.
        if self.reward_min is not None:
            mask &= columns["reward"] >= self.reward_min
        if self.reward_max is not None:
            mask &= columns["reward"] <= self.reward_max
        return np.nonzero(mask)[0]


def _lines_at(file: BinaryIO, offsets: Iterable[int]) -> Iterator[tuple[int, Line]]:
    """Yield the lines at the given offsets; the line is empty if a damaged offset is beyond the end of the file."""
    size = os.fstat(file.fileno()).st_size
    for start in map(int, offsets):
        file.seek(min(start, size))
        yield start, next_line(file)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else float(value)


SUBFOLDER, EVALUATION_FILE = "trajectories", "trajectories.jsonl"
INDEX_TIMEOUT = 60.0  # seconds to find a row in a file without offsets
REWRITE_GROWTH = 1.1  # growth factor after which a cached index is rewritten


@dataclass(frozen=True, slots=True)
class TrajectoryFile:
    """The trajectory file of one step; `rows` is None if the number of rows is not known without reading the file."""

    step: int
    name: str
    rows: int | None

    def sibling(self, suffix: str) -> str:
        """Return the name of a file that belongs to this one, such as its offsets file."""
        return self.name.removesuffix(".jsonl") + suffix

    def describe_invalid(self, row: int, start: int, error: InvalidRow) -> str:
        return f"row {row} of {self.name}, at byte {start}, is not a trajectory: {error}"


@dataclass(frozen=True, slots=True)
class TrajectoryId:
    """Step and row of a trajectory, written STEP.ROW."""

    step: int
    row: int

    @classmethod
    def parse(cls, text: str) -> "TrajectoryId":
        step, dot, row = text.partition(".")
        if not (dot and all(part.isascii() and part.isdigit() and len(part) <= 12 for part in (step, row))):
            raise HttpProblem(400, f"{text[:80]!r} is not a trajectory id; expected STEP.ROW, such as 12.0")
        return cls(int(step), int(row))

    def __str__(self) -> str:
        return f"{self.step}.{self.row}"


@dataclass(slots=True)
class TrajectoryFiles:
    """All trajectories of one folder; indexes are kept in memory and in the cache folder, if given."""

    folder: ViewedFolder
    kind: Kind
    cache: Path | None = None
    lock: RLock = field(default_factory=RLock)
    _indexes: dict[str, TrajectoryIndex] = field(default_factory=dict)
    _cached_rows: dict[str, int] = field(default_factory=dict)

    def files(self) -> list[TrajectoryFile]:
        if self.kind == "evaluation":
            return [TrajectoryFile(0, EVALUATION_FILE, None)] if self.folder.find(EVALUATION_FILE) else []
        entries = {each.name: each for each in self.folder.entries(SUBFOLDER)}
        found = []
        for name in entries:
            if match := STEP_FILE.fullmatch(name):
                offsets = entries.get(name.removesuffix(".jsonl") + ".offsets")
                rows = None if offsets is None or offsets.is_symlink() else offsets.stat().st_size // 8
                found.append(TrajectoryFile(int(match[1]), f"{SUBFOLDER}/{name}", rows))
        return sorted(found, key=lambda file: file.step)

    def file(self, step: int) -> TrajectoryFile:
        found = next((file for file in self.files() if file.step == step), None)
        if found is None:
            raise HttpProblem(404, f"{self.folder.id} has no trajectories of step {step}")
        return found

    def index(self, file: TrajectoryFile, until: float) -> tuple[TrajectoryIndex, bool]:
        """Return the index of a file, extended until a deadline, and whether it is complete."""
        with self.lock:
            if file.name not in self._indexes:
                self._indexes[file.name] = self._load(file) or TrajectoryIndex(file.name)
            found = self._indexes[file.name]
            complete = found.is_current(self.folder, file.rows)
            if not complete and time.monotonic() < until:
                complete = found.extend(self.folder, until, None if file.rows is None else self.offsets(file))
                if complete:
                    self._save(found)
            return found, complete

    def offsets(self, file: TrajectoryFile) -> Offsets:
        if file.rows is not None:
            with self.folder.open(file.sibling(".offsets")) as opened:
                written = opened.read(8 * file.rows)
            return np.frombuffer(written[: len(written) // 8 * 8], dtype="<u8")
        found, _ = self.index(file, time.monotonic() + INDEX_TIMEOUT)
        return found.columns()["start"]

    def row(self, at: TrajectoryId) -> Tree:
        file = self.file(at.step)
        if file.rows is not None:
            start = self._offset(file.sibling(".offsets"), at.row)
        else:
            offsets = self.offsets(file)
            start = int(offsets[at.row]) if at.row < len(offsets) else None
        if start is None:
            raise HttpProblem(404, f"step {at.step} of {self.folder.id} has no row {at.row}")
        try:
            return parse_trajectory(next(self.lines(file.name, [start])))
        except InvalidRow as error:
            raise HttpProblem(503, file.describe_invalid(at.row, start, error)) from error

    def lines(self, name: str, offsets: Iterable[int]) -> Iterator[bytes]:
        """Yield the lines at the given offsets of a file; a line is empty if its offset is beyond the end."""
        with self.folder.open(name) as opened:
            yield from (line.text for _, line in _lines_at(opened, offsets))

    def sibling_row(self, file: TrajectoryFile, suffix: str, row: int) -> bytes | None:
        """Return the same row of a sibling file, such as the token log; None if the file or row is missing."""
        name, offsets = file.sibling(f"{suffix}.jsonl"), file.sibling(f"{suffix}.offsets")
        if self.folder.find(name) is None or self.folder.find(offsets) is None:
            return None
        start = self._offset(offsets, row)
        return None if start is None else next(self.lines(name, [start]))

    def _offset(self, name: str, row: int) -> int | None:
        with self.folder.open(name) as file:
            file.seek(8 * row)
            written = file.read(8)
        return int.from_bytes(written, "little") if len(written) == 8 else None

    def _load(self, file: TrajectoryFile) -> TrajectoryIndex | None:
        path = self._cache_path(file.name)
        if path is None:
            return None
        try:
            found = TrajectoryIndex.from_json(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None  # missing or damaged: the file itself is read instead
        self._cached_rows[file.name] = found.rows
        return found

    def _save(self, index: TrajectoryIndex) -> None:
        """Write an index that has grown to the cache; disable the cache if it cannot be written."""
        path = self._cache_path(index.name)
        if path is None or index.rows < REWRITE_GROWTH * self._cached_rows.get(index.name, 0):
            return
        temporary = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(index.to_json()), encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            sys.stderr.write(f"the index of {self.folder.id} cannot be cached in {self.cache}: {error}\n")
            self.cache = None
        else:
            self._cached_rows[index.name] = index.rows

    def _cache_path(self, name: str) -> Path | None:
        if self.cache is None:
            return None
        folder = sha256(os.fsencode(self.folder.path.resolve())).hexdigest()[:24]
        return self.cache / folder / f"{Path(name).stem}.json"


def total_rows(files: Iterable[TrajectoryFile]) -> int | None:
    counts = [file.rows for file in files]
    return None if None in counts else sum(count or 0 for count in counts)
