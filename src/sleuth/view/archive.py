"""The archive of a run or an evaluation: its files of trajectories, a catalogue of each, and lines by their place."""

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
from sleuth.view.catalogue import Catalogue, Starts
from sleuth.view.library import STEP_FILE, Kind
from sleuth.view.line import Tree, next_line, parsed
from sleuth.view.roots import Shown

FOLDER, WHOLE = "trajectories", "trajectories.jsonl"
PATIENCE = 60.0  # seconds until a row of a file without offsets has to be found
GROWN = 1.1  # how much a catalogue has to grow until it is written again


@dataclass(frozen=True, slots=True)
class Leaf:
    """A file of trajectories; `rows` is how many it has, None where only reading it tells."""

    step: int
    name: str
    rows: int | None


@dataclass(frozen=True, slots=True)
class At:
    """A trajectory by its step and its row in the file of that step; written as STEP.ROW."""

    step: int
    row: int

    @classmethod
    def read(cls, text: str) -> "At":
        step, dot, row = text.partition(".")
        if not (dot and _whole(step) and _whole(row)):
            raise HttpProblem(400, f"{text[:80]!r} names no trajectory; expected STEP.ROW, such as 12.0")
        return cls(int(step), int(row))

    def __str__(self) -> str:
        return f"{self.step}.{self.row}"


@dataclass(slots=True)
class Archive:
    """The trajectories of one folder; catalogues are kept in memory, and in `cache` where there is such a folder."""

    shown: Shown
    kind: Kind
    cache: Path | None = None
    lock: RLock = field(default_factory=RLock)
    _catalogues: dict[str, Catalogue] = field(default_factory=dict)
    _kept: dict[str, int] = field(default_factory=dict)

    def leaves(self) -> list[Leaf]:
        """The files there are now, by ascending step."""
        if self.kind == "evaluation":
            return [Leaf(0, WHOLE, None)] if self.shown.there(WHOLE) else []
        entries = {each.name: each for each in self.shown.names(FOLDER)}
        found = [(int(match[1]), name) for name in entries if (match := STEP_FILE.fullmatch(name))]
        return [
            Leaf(step, f"{FOLDER}/{name}", _rows(entries.get(name.removesuffix(".jsonl") + ".offsets")))
            for step, name in sorted(found)
        ]

    def count(self) -> int | None:
        """How many trajectories there are; None where only reading the file tells."""
        counts = [leaf.rows for leaf in self.leaves()]
        return None if None in counts else sum(count or 0 for count in counts)

    def leaf(self, step: int) -> Leaf:
        found = next((leaf for leaf in self.leaves() if leaf.step == step), None)
        if found is None:
            raise HttpProblem(404, f"{self.shown.id} has no trajectories of step {step}")
        return found

    def catalogue(self, leaf: Leaf, until: float) -> tuple[Catalogue, bool]:
        """What is known of a file after reading on until a moment, and whether that is all of it."""
        with self.lock:
            if leaf.name not in self._catalogues:
                self._catalogues[leaf.name] = self._remembered(leaf) or Catalogue(leaf.name)
            found = self._catalogues[leaf.name]
            whole = found.current(self.shown, leaf.rows)
            if not whole and time.monotonic() < until:
                whole = found.extend(self.shown, until, None if leaf.rows is None else self.starts(leaf))
                if whole:
                    self._keep(found)
            return found, whole

    def starts(self, leaf: Leaf) -> Starts:
        """Where the rows of a file begin, from the offsets beside it or by reading it."""
        if leaf.rows is not None:
            with self.shown.open(_offsets(leaf)) as file:
                written = file.read(8 * leaf.rows)
            return np.frombuffer(written[: len(written) // 8 * 8], dtype="<u8")
        found, _ = self.catalogue(leaf, time.monotonic() + PATIENCE)
        return found.columns()["start"]

    def row(self, at: At) -> Tree:
        """The row of a trajectory; one that is none is refused with what is wrong with it."""
        leaf = self.leaf(at.step)
        start = self._start(leaf, at.row)
        if start is None:
            raise HttpProblem(404, f"step {at.step} of {self.shown.id} has no row {at.row}")
        try:
            return parsed(next(self.lines(leaf, [start])))
        except InvalidRow as error:
            raise HttpProblem(503, broken(leaf, at.row, start, error)) from error

    def lines(self, leaf: Leaf, starts: Iterable[int]) -> Iterator[bytes]:
        """The lines that begin at these places of a file; nothing for one beyond its end."""
        with self.shown.open(leaf.name) as file:
            size = os.fstat(file.fileno()).st_size
            for start in starts:
                # Cut off, or the offsets are those of another file; no file can be sought at every number.
                file.seek(min(int(start), size))
                yield next_line(file).text

    def beside(self, leaf: Leaf, suffix: str, row: int) -> bytes | None:
        """The line of the same row in a file beside, such as what was learned; None where there is none."""
        name = leaf.name.removesuffix(".jsonl") + suffix
        if self.shown.there(f"{name}.jsonl") is None or self.shown.there(f"{name}.offsets") is None:
            return None
        start = self._offset(f"{name}.offsets", row)
        if start is None:
            return None
        with self.shown.open(f"{name}.jsonl") as file:
            file.seek(min(start, os.fstat(file.fileno()).st_size))
            return next_line(file).text

    def _start(self, leaf: Leaf, row: int) -> int | None:
        if leaf.rows is not None:
            return self._offset(_offsets(leaf), row)
        starts = self.starts(leaf)
        return int(starts[row]) if row < len(starts) else None

    def _offset(self, name: str, row: int) -> int | None:
        with self.shown.open(name) as file:
            file.seek(8 * row)
            written = file.read(8)
        return int.from_bytes(written, "little") if len(written) == 8 else None

    def _remembered(self, leaf: Leaf) -> Catalogue | None:
        path = self._place(leaf.name)
        if path is None:
            return None
        try:
            found = Catalogue.read(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None  # no cache, or a broken one: the file itself is read instead
        self._kept[leaf.name] = found.rows
        return found

    def _keep(self, catalogue: Catalogue) -> None:
        """Writes a catalogue that has grown; a cache that cannot be written is done without."""
        path = self._place(catalogue.name)
        if path is None or catalogue.rows < GROWN * self._kept.get(catalogue.name, 0):
            return
        temporary = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(catalogue.written()), encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            sys.stderr.write(f"the index of {self.shown.id} is not kept in {self.cache}: {error}\n")
            self.cache = None
        else:
            self._kept[catalogue.name] = catalogue.rows

    def _place(self, name: str) -> Path | None:
        if self.cache is None:
            return None
        folder = sha256(os.fsencode(self.shown.path.resolve())).hexdigest()[:24]
        return self.cache / folder / f"{Path(name).stem}.json"


def broken(leaf: Leaf, row: int, start: int, error: InvalidRow) -> str:
    """The sentence that stands for a row that is no trajectory: where it is, and what is wrong with it."""
    return f"row {row} of {leaf.name}, at byte {start}, is no trajectory: {error}"


def _rows(offsets: "os.DirEntry[str] | None") -> int | None:
    return None if offsets is None or offsets.is_symlink() else offsets.stat().st_size // 8


def _offsets(leaf: Leaf) -> str:
    return leaf.name.removesuffix(".jsonl") + ".offsets"


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12
