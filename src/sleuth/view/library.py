"""Runs and evaluations found in the viewed folders: lists, status, documents and metrics."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

from sleuth import __version__
from sleuth.credentials import redact_tree
from sleuth.errors import InputError
from sleuth.http.responses import HttpProblem
from sleuth.runs.json_files import parse_object
from sleuth.runs.trajectory import InvalidRow
from sleuth.view.folders import MANIFEST, Root, ViewedFolder
from sleuth.view.jsonl import FilePosition, Tree, check_nesting, complete_lines, parse_json

Kind = Literal["run", "evaluation"]

FORMAT = 1
STEP_FILE = re.compile(r"step-(\d{1,12})\.jsonl")
TAIL = 1 << 16  # bytes at the end of a metrics file that contain its last line
MAX_METRICS = 2000  # rows per response
METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
FINAL: dict[Kind, str] = {"run": "summary.json", "evaluation": "results.json"}  # written when finished
GROWING: dict[Kind, str] = {"run": METRICS, "evaluation": "trajectories.jsonl"}
HEADLINES = ("reward/mean", "episode/em", "evaluate/em", "loss")


@dataclass(slots=True)
class Library:
    """The runs and evaluations below the roots; ids from clients are looked up only here."""

    roots: Sequence[Root]
    _known: dict[Kind, dict[str, ViewedFolder]] = field(default_factory=lambda: {"run": {}, "evaluation": {}})
    _lock: Lock = field(default_factory=Lock)

    def find(self, kind: Kind, name: str) -> ViewedFolder:
        """Look up a run or evaluation, scanning again if it is unknown."""
        if name not in self._known[kind]:
            self.scan()
        folder = self._known[kind].get(name)
        if folder is None:
            raise HttpProblem(404, f"there is no {kind} {name[:200]!r}; /api/library lists all")
        return folder

    def scan(self) -> list[Tree]:
        """Search the roots; return the folders that cannot be shown, with the reason."""
        with self._lock:
            known: dict[Kind, dict[str, ViewedFolder]] = {"run": {}, "evaluation": {}}
            broken: list[Tree] = []
            for root in self.roots:
                for name, path in root.folders():
                    folder = ViewedFolder(name, path, root)
                    try:
                        kind = _kind_of(folder)
                    except (InputError, OSError, HttpProblem) as error:
                        broken.append({"id": name, "detail": str(error)})
                    else:
                        if kind is not None:
                            known[kind][name] = folder
            self._known = known
            return broken

    def counts(self) -> tuple[int, int]:
        """Number of runs and evaluations at the last scan."""
        return len(self._known["run"]), len(self._known["evaluation"])

    def overview(self) -> Tree:
        """Summaries of all runs and evaluations."""
        broken = self.scan()
        return {
            "version": __version__,
            "folders": [root.name for root in self.roots],
            "runs": list(self._summaries("run", _run_summary, broken)),
            "evaluations": list(self._summaries("evaluation", _evaluation_summary, broken)),
            "broken": broken,
        }

    def _summaries(self, kind: Kind, summarize: Callable[[ViewedFolder], Tree], broken: list[Tree]) -> Iterator[Tree]:
        for folder in list(self._known[kind].values()):
            try:
                yield summarize(folder)
            except Exception as error:  # one unreadable folder must not fail the list
                broken.append({"id": folder.id, "detail": f"{folder.id} cannot be read ({error}); check its files"})


def read_document(folder: ViewedFolder, name: str) -> Tree | None:
    """Parse a JSON file with credentials redacted; None if missing."""
    text = folder.read(name)
    if text is None:
        return None
    try:
        found: Tree = redact_tree(check_nesting(parse_object(text, f"{name} of {folder.id}")))
    except ValueError as error:
        raise InputError(f"{name} of {folder.id} cannot be shown: {error}") from error
    return found


def status(folder: ViewedFolder, kind: Kind) -> Tree:
    """Whether a run or evaluation is finished, and when it was last written."""
    final = folder.find(FINAL[kind])
    last = final or folder.find(GROWING[kind]) or folder.find(MANIFEST)
    written = last.stat().st_mtime if last is not None else None
    return {
        "id": folder.id,
        "name": folder.path.name,
        "state": "finished" if final is not None else "open",
        "written": written,
        "age_seconds": None if written is None else max(0.0, round(time.time() - written, 3)),
    }


def _kind_of(folder: ViewedFolder) -> Kind | None:
    """Kind of a folder by its manifest; None for others, such as an index."""
    if not folder.root.contains(folder.path):
        raise InputError(f"{folder.id} is a link out of the viewed folder; name its target as well")
    manifest = read_document(folder, MANIFEST)
    if manifest is None:
        raise InputError(f"{MANIFEST} of {folder.id} is not a regular file, or is a link out of the viewed folder")
    kind = manifest.get("kind")
    if not isinstance(kind, str) or kind not in FINAL:
        return None
    if manifest.get("format") != FORMAT:
        raise InputError(f"{folder.id} has format {manifest.get('format')!r}; this version reads format {FORMAT}")
    return "run" if kind == "run" else "evaluation"


def _run_summary(folder: ViewedFolder) -> Tree:
    config = (read_document(folder, MANIFEST) or {}).get("config") or {}
    last = _last_metrics(folder)
    return {
        **status(folder, "run"),
        "steps": (last or {}).get("step"),
        "steps_planned": _lookup(config, "train", "steps"),
        "model": _lookup(config, "model", "policy"),
        "algorithm": _lookup(config, "algorithm", "advantage"),
        "trajectory_files": sum(STEP_FILE.fullmatch(each.name) is not None for each in folder.entries("trajectories")),
        "last": None if last is None else {name: last[name] for name in ("step", *HEADLINES) if name in last},
    }


def _evaluation_summary(folder: ViewedFolder) -> Tree:
    manifest = read_document(folder, MANIFEST) or {}
    try:
        results = read_document(folder, FINAL["evaluation"]) or {}
    except (InputError, HttpProblem):  # reported when the evaluation is opened
        results = {}
    return {
        **status(folder, "evaluation"),
        "title": manifest.get("title"),
        "questions": results.get("questions", _lookup(manifest, "stamp", "questions", "count")),
        "sets": list(results.get("sets") or ()),
        "em": results.get("em"),
    }


def _last_metrics(folder: ViewedFolder) -> Tree | None:
    """Last complete row of the metrics."""
    if folder.find(METRICS) is None:
        return None
    with folder.open(METRICS) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        complete, _, _ = file.read(TAIL).rpartition(b"\n")
    try:
        row = parse_json(complete.rpartition(b"\n")[2])
    except InvalidRow:  # no complete line yet, or one longer than TAIL
        return None
    return row if isinstance(row, dict) else None


def _lookup(tree: Mapping[str, Any], *names: str) -> Any:
    """Scalar of nested tables; None if missing."""
    for name in names:
        tree = tree.get(name, {}) if isinstance(tree, Mapping) else {}
    return tree if not isinstance(tree, Mapping) else None


def metrics_since(folder: ViewedFolder, cursor: str | None) -> Tree:
    """Metrics and events after a cursor; all of them, with `reset`, if the run has rewritten its files."""
    names = (METRICS, EVENTS)
    positions = _read_cursor(cursor)
    valid = cursor is not None and all(map(_is_unchanged, (folder, folder), names, positions))
    if not valid:
        positions = (FilePosition(), FilePosition())
    (rows, rows_end), (events, events_end) = (
        _rows_after(folder, name, position) for name, position in zip(names, positions, strict=True)
    )
    columns = dict.fromkeys(name for row in rows for name in row)
    state = status(folder, "run")
    return {
        "cursor": f"{rows_end.end}.{rows_end.check}.{events_end.end}.{events_end.check}",
        "reset": not valid,
        "more": MAX_METRICS in (len(rows), len(events)),
        "state": state["state"],
        "age_seconds": state["age_seconds"],
        "columns": {name: [row.get(name) for row in rows] for name in columns},
        "events": events,
    }


def _read_cursor(cursor: str | None) -> tuple[FilePosition, FilePosition]:
    if cursor is None:
        return FilePosition(), FilePosition()
    parts = cursor.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise HttpProblem(400, f"cursor is {cursor[:80]!r}; expected the cursor of the last response, or none")
    metrics, metrics_check, events, events_check = map(int, parts)
    return FilePosition(metrics, metrics_check), FilePosition(events, events_check)


def _is_unchanged(folder: ViewedFolder, name: str, position: FilePosition) -> bool:
    if folder.find(name) is None:
        return position.end == 0
    with folder.open(name) as file:
        return position.matches(file)


def _rows_after(folder: ViewedFolder, name: str, position: FilePosition) -> tuple[list[Tree], FilePosition]:
    """Complete rows after a position, and the position after them."""
    if folder.find(name) is None:
        return [], position
    rows: list[Tree] = []
    with folder.open(name) as file:
        end = position.end
        for start, line in complete_lines(file, position.end):
            try:
                row = parse_json(line.text)
            except InvalidRow as error:
                raise HttpProblem(503, f"{name} of {folder.id} has an unreadable line: {error}; remove it") from error
            rows.append(row if isinstance(row, dict) else {})
            end = start + line.size
            if len(rows) == MAX_METRICS:
                break
        return rows, FilePosition.at(file, end)
