"""Evaluation folder: an evaluation on disk that can be interrupted and resumed.

`manifest.json` holds the stamp; `questions.jsonl` the questions in order; `trajectories.jsonl` one row per finished
episode, in order of completion; `trajectories.offsets` the byte offset of each question's row; `marks.jsonl` one result
per question; `results.json`, `.md` and `.html` the figures.
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
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from sleuth.corpus import questions as question_files
from sleuth.errors import InputError
from sleuth.records import (
    Action,
    Answer,
    Branch,
    Hit,
    Malformed,
    Outcome,
    Passage,
    Question,
    Score,
    Segment,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)
from sleuth.runs.atomic import PRIVATE, atomic_write, explain_write_errors, write_private
from sleuth.runs.json_files import read_json, read_rows
from sleuth.runs.lock import locked
from sleuth.runs.trajectory import FullRow, first_problem, trajectory_row, unsupported_version, validate_row

FORMAT = 1
KIND = "evaluation"
MANIFEST, QUESTIONS, TRAJECTORIES = "manifest.json", "questions.jsonl", "trajectories.jsonl"
OFFSETS, QUESTION_RESULTS = "trajectories.offsets", "marks.jsonl"
RESULTS, TIME = "results.json", "time.json"

_QUESTION = TypeAdapter(Question)

Row = dict[str, Any]
Stamp = Mapping[str, Any]  # everything the figures depend on: model, settings, questions, code version


class RowLocation(NamedTuple):
    start: int
    usable: bool


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """An evaluation on disk; `lock` it while asking questions."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> "EvaluationFolder":
        if not (path / MANIFEST).is_file():
            raise InputError(f"{path} has no {MANIFEST}; expected a folder written by `sleuth evaluate`")
        written = read_json(path / MANIFEST)
        if written.get("kind") != KIND or written.get("format") != FORMAT:
            found = f"{written.get('kind')!r} of format {written.get('format')!r}"
            raise InputError(f"{path} holds {found}; expected an evaluation of format {FORMAT}")
        if not isinstance(written.get("stamp"), dict):
            raise InputError(f"{path / MANIFEST} has no stamp; restore it, or choose another folder with --out")
        return cls(path)

    @classmethod
    def create_or_resume(cls, path: Path, manifest: Row, questions: Sequence[Question]) -> "EvaluationFolder":
        """Create an evaluation, or open the existing one if its stamp is the same."""
        if not path.exists():
            with atomic_write(path) as temporary:
                temporary.mkdir(mode=PRIVATE)
                question_files.write(temporary / QUESTIONS, questions)
                whole = {"format": FORMAT, "kind": KIND, **manifest}
                write_private(temporary / MANIFEST, (json.dumps(whole, indent=2) + "\n").encode())
            return cls(path)
        existing = cls.open(path)
        if difference := _first_difference(existing.manifest()["stamp"], manifest["stamp"]):
            raise InputError(f"{path} was started with a different {difference}; choose another folder with --out")
        return existing

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from evaluating here; the lock is released when the process ends."""
        with locked(self.path / "lock", f"another process is evaluating in {self.path}; wait for it, or end it first"):
            yield

    def remove_if_empty(self) -> None:
        if not (self.path / TRAJECTORIES).exists():
            shutil.rmtree(self.path)

    def manifest(self) -> Row:
        return read_json(self.path / MANIFEST)

    def questions(self) -> list[Question]:
        """Questions in order; rows refer to them by position, because ids may repeat across data sets."""
        path = self.path / QUESTIONS
        try:
            return [_QUESTION.validate_python(row) for row in read_rows(path)]
        except ValidationError as error:
            raise InputError(
                f"{path} cannot be read ({first_problem(error)}); restore it, or choose another folder with --out"
            ) from error

    def locations(self) -> dict[int, RowLocation]:
        """Locate the trajectory of each question: its last usable row, otherwise its last complete row."""
        path = self.path / TRAJECTORIES
        if not path.exists():
            return {}
        stat = path.stat()
        return dict(_locations(path, stat.st_size, stat.st_mtime_ns))

    def seconds(self) -> float | None:
        seconds = (self.read(TIME) or {}).get("seconds")
        return seconds if isinstance(seconds, int | float) else None

    @contextmanager
    def appending(self, name: str = TRAJECTORIES) -> Iterator[Callable[[Row], None]]:
        """Yield a function that appends a row and flushes it; an incomplete last line is removed first."""
        path = self.path / name
        complete = sum(len(line) for line, _ in _complete_lines(path)) if path.exists() else 0
        with explain_write_errors(path), path.open("ab") as file:
            file.truncate(complete)

            def append(row: Row) -> None:
                file.write(json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n")
                file.flush()

            yield append
            os.fsync(file.fileno())

    def rows(self, positions: Collection[int] | None = None) -> Iterator[Row]:
        """Yield trajectory rows in question order, for the given positions or for all questions."""
        locations = self.locations()
        if not locations:
            return
        with (self.path / TRAJECTORIES).open("rb") as file:
            for position in sorted(locations if positions is None else locations.keys() & positions):
                file.seek(locations[position].start)
                yield json.loads(file.readline())

    def write_offsets(self) -> None:
        starts = array("Q", [location.start for _, location in sorted(self.locations().items())])
        if sys.byteorder == "big":
            starts.byteswap()
        with atomic_write(self.path / OFFSETS) as path:
            path.write_bytes(starts.tobytes())

    def write(self, name: str, text: str) -> Path:
        with atomic_write(self.path / name) as path:
            path.write_text(text, encoding="utf-8")
        return self.path / name

    def read(self, name: str) -> Row | None:
        """Read a JSON file; None if it does not exist."""
        return read_json(self.path / name) if (self.path / name).is_file() else None


def row_with_passages(trajectory: Trajectory, score: Score | None, seconds: float | None = None) -> Row:
    """Convert a trajectory to a row that includes passage texts, so that retrieval can be scored again."""
    written = trajectory_row(trajectory, score) | ({} if seconds is None else {"seconds": seconds})
    for turn, turn_row in zip(trajectory.turns, written["turns"], strict=True):
        for hit, hit_row in zip(turn.hits, turn_row["hits"], strict=True):
            hit_row |= {"title": hit.passage.title, "text": hit.passage.text}
    return written


def read_trajectory(written: Mapping[str, Any], question: Question) -> Trajectory:
    if problem := unsupported_version(written):
        raise InputError(f"the trajectory of question {question.id!r} cannot be read: {problem}; restore the file")
    try:
        validate_row(FullRow, written)
        segments = written["segments"] if "segments" in written else [written] if written["ids"] else []
        return Trajectory(
            question=question,
            group=written["group"],
            sample=written["sample"],
            step=written["step"],
            segments=tuple(_read_segment(each) for each in segments),
            turns=tuple(_read_turn(turn) for turn in written["turns"]),
            stop=StopReason(written["stop"]),
            failure=written["failure"],
            reward=read_score(written.get("reward")),
            branch=_read_branch(written.get("branch")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the trajectory of question {question.id!r} cannot be read ({error!r}); restore the file"
        ) from error


def read_score(written: Mapping[str, Any] | None) -> Score | None:
    """Read the field `score` or `reward` of a row; None if the trajectory has none."""
    return None if written is None else Score(written["total"], written["parts"], tuple(written.get("turns", ())))


def _read_branch(written: Mapping[str, Any] | None) -> Branch | None:
    return None if written is None else Branch(written["tree"], written["parent"], written["shared"])


def _read_segment(segment: Mapping[str, Any]) -> Segment:
    """Read one element of `segments`, or the tokens of a row without that field."""
    runs = (repeat(origin == "sampled", count) for origin, count in segment["origin"])
    return Segment(
        ids=tuple(segment["ids"]),
        sampled=tuple(chain.from_iterable(runs)),
        logprobs=tuple(segment["logprobs"]),
        versions=tuple(segment["weights_versions"]),
        role=segment.get("role", ""),
        parent=segment.get("parent"),
        shared=segment.get("shared", 0),
        calls=tuple((turn, tokens) for turn, tokens in segment.get("calls", ())),
        temperatures=tuple(segment.get("temperatures", ())),
    )


def _read_turn(turn: Mapping[str, Any]) -> Turn:
    hits = tuple(
        Hit(Passage(hit["id"], f'"{hit["title"]}"\n{hit.get("text", "")}'), hit["score"]) for hit in turn["hits"]
    )
    outcome = Outcome(turn["outcome"])
    # With a single query the counts are not written: all hits belong to it.
    counts = tuple(turn.get("counts") or ([len(hits)] if outcome is Outcome.FOUND else ()))
    match turn["action"]:
        case "search":
            action: Action = ToolCall.search(*turn.get("queries", [turn.get("query")]))
        case "access":
            action = ToolCall.access(*turn["urls"])
        case "tool":
            action = ToolCall(turn["name"], turn["arguments"])
        case "answer":
            action = Answer(turn["answer"])
        case _:
            action = Malformed(turn["reason"])
    optional = turn.get("shown"), turn.get("result"), turn.get("segment", 0)
    return Turn(turn["text"], action, outcome, turn["tokens"], hits, counts, turn["formed"], *optional)


def hash_questions(questions: Sequence[Question]) -> str:
    lines = "".join(map(question_files.encode_line, questions))
    return hashlib.sha256(lines.encode(errors="surrogatepass")).hexdigest()


def short_hash(stamp: Stamp) -> str:
    """Return the first 8 hex digits of the stamp's SHA-256, for folder names."""
    return hashlib.sha256(json.dumps(stamp, sort_keys=True).encode()).hexdigest()[:8]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to values under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def find_other_version(parent: Path, name: str, stamp: Stamp) -> EvaluationFolder | None:
    """Find an evaluation `parent/name-*` whose stamp differs only in the code version."""
    expected = json.loads(json.dumps({**stamp, "code": None}))
    for path in sorted(parent.glob(f"{name}-*/{MANIFEST}")):
        try:
            written = EvaluationFolder.open(path.parent).manifest()
        except InputError:  # an unrelated broken folder
            continue
        if {**written["stamp"], "code": None} == expected:
            return EvaluationFolder(path.parent)
    return None


def _first_difference(existing: Stamp, new: Stamp) -> str | None:
    """Describe the first entry in which two stamps differ; None if they are equal."""
    first, second = flatten(existing), flatten(json.loads(json.dumps(new)))
    for name in [*first, *(name for name in second if name not in first)]:
        if first.get(name) != second.get(name):
            texts = ["none" if value is None else str(value) for value in (first.get(name), second.get(name))]
            shown = [text if len(text) <= 40 else f"{text[:12]}..." for text in texts]
            return f"{name} ({shown[0]} in the folder, {shown[1]} now)"
    return None


@lru_cache(maxsize=2)
def _locations(path: Path, size: int, changed: int) -> Mapping[int, RowLocation]:  # noqa: ARG001  cache key
    found: dict[int, RowLocation] = {}
    for number, (line, start) in enumerate(_complete_lines(path), 1):
        try:
            row = json.loads(line)
            position, usable = int(row["group"]), StopReason(row["stop"]).usable
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"{path}, line {number} is not a trajectory ({error!r}); remove the line and repeat the command"
            ) from error
        if usable or position not in found or not found[position].usable:
            found[position] = RowLocation(start, usable)
    return found


def _complete_lines(path: Path) -> Iterator[tuple[bytes, int]]:
    start = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line, start
            start += len(line)
