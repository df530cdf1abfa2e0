"""Trajectory files of a run or evaluation: one per step, with an index each and access by row."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import RLock

import numpy as np

from sleuth.http.responses import HttpProblem
from sleuth.runs.trajectory import InvalidRow
from sleuth.view.folders import ViewedFolder
from sleuth.view.jsonl import Tree, next_line, parse_trajectory
from sleuth.view.library import STEP_FILE, Kind
from sleuth.view.trajectory_index import Offsets, TrajectoryIndex

SUBFOLDER, EVALUATION_FILE = "trajectories", "trajectories.jsonl"
INDEX_TIMEOUT = 60.0  # seconds to find a row in a file without offsets
REWRITE_GROWTH = 1.1  # growth after which a cached index is written again


@dataclass(frozen=True, slots=True)
class TrajectoryFile:
    """The file of one step; `rows` is None if only reading it tells."""

    step: int
    name: str
    rows: int | None

    def sibling(self, suffix: str) -> str:
        """Name of a file that belongs to this one, such as its offsets."""
        return self.name.removesuffix(".jsonl") + suffix

    def describe(self, row: int, start: int, error: InvalidRow) -> str:
        """Error message for an invalid row."""
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
    """All trajectories of one folder; indexes are kept in memory and, if given, in a cache folder."""

    folder: ViewedFolder
    kind: Kind
    cache: Path | None = None
    lock: RLock = field(default_factory=RLock)
    _indexes: dict[str, TrajectoryIndex] = field(default_factory=dict)
    _cached_rows: dict[str, int] = field(default_factory=dict)

    def files(self) -> list[TrajectoryFile]:
        """The current files by ascending step."""
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

    def count(self) -> int | None:
        """Number of trajectories; None if only reading the files tells."""
        return total_rows(self.files())

    def file(self, step: int) -> TrajectoryFile:
        found = next((file for file in self.files() if file.step == step), None)
        if found is None:
            raise HttpProblem(404, f"{self.folder.id} has no trajectories of step {step}")
        return found

    def index(self, file: TrajectoryFile, until: float) -> tuple[TrajectoryIndex, bool]:
        """Index of a file, extended until a deadline, and whether it is complete."""
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
        """Byte offsets of the rows, from the offsets file or by reading."""
        if file.rows is not None:
            with self.folder.open(file.sibling(".offsets")) as opened:
                written = opened.read(8 * file.rows)
            return np.frombuffer(written[: len(written) // 8 * 8], dtype="<u8")
        found, _ = self.index(file, time.monotonic() + INDEX_TIMEOUT)
        return found.columns()["start"]

    def row(self, at: TrajectoryId) -> Tree:
        """Parsed row of a trajectory."""
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
            raise HttpProblem(503, file.describe(at.row, start, error)) from error

    def lines(self, name: str, offsets: Iterable[int]) -> Iterator[bytes]:
        """Lines at these offsets of a file; empty for an offset beyond its end."""
        with self.folder.open(name) as opened:
            size = os.fstat(opened.fileno()).st_size
            for start in offsets:
                opened.seek(min(int(start), size))  # offsets may be damaged
                yield next_line(opened).text

    def sibling_row(self, file: TrajectoryFile, suffix: str, row: int) -> bytes | None:
        """The same row of a sibling file, such as the token log; None if missing."""
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
        """Cache an index that has grown; disable the cache if it cannot be written."""
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
    """Sum of the rows; None if one is unknown."""
    counts = [file.rows for file in files]
    return None if None in counts else sum(count or 0 for count in counts)
