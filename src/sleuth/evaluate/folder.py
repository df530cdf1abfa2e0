"""The folder of an evaluation: what was asked of whom, every trajectory as it finished, and what came of it.

`manifest.json` holds the stamp; `questions.jsonl` what is asked, in order; `trajectories.jsonl` a row for each, in the
order in which they finished, and `trajectories.offsets` where the row of each question begins; `marks.jsonl` what was
measured of each question; `results.json`, `.md` and `.html` the figures.
"""

import hashlib
import json
import os
import shutil
import sys
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sleuth.corpus import questions as question_files
from sleuth.errors import InputError
from sleuth.records import Question, StopReason
from sleuth.runs.atomic import PRIVATE, atomic_write, explain_write_errors, write_private
from sleuth.runs.json_files import read_json, read_rows
from sleuth.runs.lock import locked
from sleuth.runs.trajectory import first_problem

FORMAT = 1
KIND = "evaluation"
MANIFEST, QUESTIONS, TRAJECTORIES, OFFSETS, MARKS = (
    "manifest.json",
    "questions.jsonl",
    "trajectories.jsonl",
    "trajectories.offsets",
    "marks.jsonl",
)
RESULTS, TIME = "results.json", "time.json"

_QUESTION = TypeAdapter(Question)

Row = dict[str, Any]
Stamp = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands in its file, and whether its trajectory is usable."""

    start: int
    usable: bool


@dataclass(frozen=True, slots=True)
class Folder:
    """An evaluation on the disk; made or continued by `begun`, found by `open`, `held` while it is asked."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> "Folder":
        """An existing evaluation, in a format this version reads."""
        if not (path / MANIFEST).is_file():
            raise InputError(f"{path} is no evaluation: it holds no {MANIFEST}; give a folder of sleuth evaluate")
        written = read_json(path / MANIFEST)
        if written.get("kind") != KIND or written.get("format") != FORMAT:
            found = f"{written.get('kind')!r} of format {written.get('format')!r}"
            raise InputError(f"{path} holds {found}; expected an evaluation of format {FORMAT}")
        if not isinstance(written.get("stamp"), dict):
            raise InputError(f"{path / MANIFEST} has no stamp; put it back, or choose another folder with --out")
        return cls(path)

    @classmethod
    def begun(cls, path: Path, manifest: Row, questions: Sequence[Question]) -> "Folder":
        """A new evaluation, or the one of the same stamp that is there already; one of another stamp is refused."""
        if not path.exists():
            with atomic_write(path) as temporary:
                temporary.mkdir(mode=PRIVATE)
                question_files.write(temporary / QUESTIONS, questions)
                whole = {"format": FORMAT, "kind": KIND, **manifest}
                write_private(temporary / MANIFEST, (json.dumps(whole, indent=2) + "\n").encode())
            return cls(path)
        there = cls.open(path)
        if different := _difference(there.manifest()["stamp"], manifest["stamp"]):
            raise InputError(f"{path} was begun with another {different}; choose another folder with --out")
        return there

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from asking here; the lock ends with the process, however that ends."""
        with locked(self.path / "lock", f"another process is evaluating in {self.path}; wait for it, or end it first"):
            yield

    def forsake(self) -> None:
        """Removes a folder in which nothing was ever answered, and no other."""
        if not (self.path / TRAJECTORIES).exists():
            shutil.rmtree(self.path)

    def manifest(self) -> Row:
        return read_json(self.path / MANIFEST)

    def questions(self) -> list[Question]:
        """What is asked, in order; ids may repeat from set to set, and places do not."""
        path = self.path / QUESTIONS
        try:
            return [_QUESTION.validate_python(row) for row in read_rows(path)]
        except ValidationError as error:
            raise InputError(
                f"{path} cannot be read ({first_problem(error)}); put it back, or choose another folder with --out"
            ) from error

    def places(self) -> dict[int, "Place"]:
        """Where the trajectory of each question stands: the usable one, else the last; half a row is none."""
        path = self.path / TRAJECTORIES
        if not path.exists():
            return {}
        written = path.stat()
        return dict(_places(path, written.st_size, written.st_mtime_ns))

    def seconds(self) -> float | None:
        """How long asking took in all sessions; None where none was timed."""
        seconds = (self.read(TIME) or {}).get("seconds")
        return seconds if isinstance(seconds, int | float) else None

    def write_seconds(self, seconds: float) -> None:
        self.write(TIME, json.dumps({"seconds": seconds}) + "\n")

    @contextmanager
    def writing(self) -> Iterator[Callable[[Row], None]]:
        """Takes rows; each is out of this process when the call returns, so that a kill loses none."""
        path = self.path / TRAJECTORIES
        whole = sum(len(line) for line, _ in _lines(path)) if path.exists() else 0
        with explain_write_errors(path), path.open("ab") as file:
            file.truncate(whole)

            def write(row: Row) -> None:
                file.write(json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n")
                file.flush()

            yield write
            os.fsync(file.fileno())

    def rows(self, wanted: Collection[int] | None = None) -> Iterator[Row]:
        """The trajectory that counts of each question that was asked, in their order; of the `wanted` ones, or all."""
        places = self.places()
        if not places:
            return
        with (self.path / TRAJECTORIES).open("rb") as file:
            for group in sorted(places if wanted is None else places.keys() & wanted):
                file.seek(places[group].start)
                yield json.loads(file.readline())

    def write_offsets(self) -> None:
        """Where the row of each question begins, in the order of the questions."""
        starts = array("Q", [place.start for _, place in sorted(self.places().items())])
        if sys.byteorder == "big":
            starts.byteswap()
        with atomic_write(self.path / OFFSETS) as path:
            path.write_bytes(starts.tobytes())

    def write(self, name: str, text: str) -> Path:
        """Writes one document into the folder, whole or not at all."""
        with atomic_write(self.path / name) as path:
            path.write_text(text, encoding="utf-8")
        return self.path / name

    def read(self, name: str) -> Row | None:
        """A JSON document of the folder; None where it is not there."""
        return read_json(self.path / name) if (self.path / name).is_file() else None


def hashed(questions: Sequence[Question]) -> str:
    """What names questions by their contents and order."""
    lines = "".join(map(question_files.line, questions))
    return hashlib.sha256(lines.encode(errors="surrogatepass")).hexdigest()


def short_hash(stamp: Stamp) -> str:
    """A few letters that tell one stamp from another."""
    return hashlib.sha256(json.dumps(stamp, sort_keys=True).encode()).hexdigest()[:8]


def leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def same_but_for_code(folder: Path, name: str, stamp: Stamp) -> "Folder | None":
    """An evaluation beside, of such a name, whose stamp differs in the code version and in nothing else."""
    wanted = json.loads(json.dumps({**stamp, "code": None}))
    for path in sorted(folder.glob(f"{name}-*/{MANIFEST}")):
        try:
            written = Folder.open(path.parent).manifest()
        except InputError:  # what is broken beside is no concern of a new evaluation
            continue
        if {**written["stamp"], "code": None} == wanted:
            return Folder(path.parent)
    return None


def _difference(there: Stamp, here: Stamp) -> str | None:
    """The first part in which two stamps differ, with both values."""
    first, second = leaves(there), leaves(json.loads(json.dumps(here)))
    for name in [*first, *(name for name in second if name not in first)]:
        if first.get(name) != second.get(name):
            return f"{name} ({_shown(first.get(name))} there, {_shown(second.get(name))} here)"
    return None


def _shown(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."


@lru_cache(maxsize=2)
def _places(path: Path, size: int, changed: int) -> Mapping[int, Place]:  # noqa: ARG001  they name what was read
    """See Folder.places; a file that was not written to since is not read again."""
    found: dict[int, Place] = {}
    for number, (line, start) in enumerate(_lines(path), 1):
        group, usable = _told(line, f"{path}, line {number}")
        if usable or group not in found or not found[group].usable:
            found[group] = Place(start, usable)
    return found


def _lines(path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole lines, each with the place where it begins."""
    start = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line, start
            start += len(line)


def _told(line: bytes, where: str) -> tuple[int, bool]:
    """The question of a row by its place, and whether its trajectory is usable."""
    try:
        row = json.loads(line)
        return int(row["group"]), StopReason(row["stop"]).usable
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{where} is no trajectory ({error!r}); remove that line and give the command that wrote it again"
        ) from error
