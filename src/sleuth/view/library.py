"""Runs and evaluations in the viewed folders; the only module that opens their files, and never any outside."""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Literal

from sleuth import __version__
from sleuth.credentials import redact_tree
from sleuth.errors import InputError
from sleuth.http.responses import HttpProblem
from sleuth.runs.json_files import parse_object
from sleuth.runs.trajectory import InvalidRow
from sleuth.view.jsonl import FilePosition, Tree, check_nesting, complete_lines, parse_json

MANIFEST = "manifest.json"
MAX_DEPTH = 4  # maximum number of folders between a root and a run
MAX_DOCUMENT = 32 << 20  # bytes
MAX_MANIFEST = 1 << 20  # bytes; manifests are read for every list


@dataclass(frozen=True, slots=True)
class Root:
    """A folder given by the user, with a unique name; `path` is resolved."""

    name: str
    path: Path

    def contains(self, path: Path) -> bool:
        """Whether a path is inside the root after resolving all links."""
        return path.resolve().is_relative_to(self.path)

    def folders(self, inside: str = "", depth: int = MAX_DEPTH) -> Iterator[tuple[str, Path]]:
        """Yield the id and path of each folder with a manifest; does not descend into these folders or into links.

        A link that leaves the root is yielded as well, so that it can be reported.
        """
        folder = self.path / inside
        link = folder.is_symlink()
        if (link and not self.contains(folder)) or (folder / MANIFEST).exists():
            yield str(Path(self.name, inside)), folder
        elif depth and not link:
            try:
                with os.scandir(folder) as entries:
                    names = sorted(each.name for each in entries if not each.name.startswith(".") and each.is_dir())
            except OSError:  # unreadable
                return
            for name in names:
                yield from self.folders(f"{inside}/{name}" if inside else name, depth - 1)


@dataclass(frozen=True, slots=True)
class ViewedFolder:
    """A run or evaluation inside a root; file names passed to its methods must not come from a client."""

    id: str
    path: Path
    root: Root

    def find(self, name: str) -> Path | None:
        """Return the path of a regular file; None if it is missing or a link that leaves the root."""
        path = self.path / name
        return path if path.is_file() and self.root.contains(path) else None

    def open(self, name: str) -> BinaryIO:
        path = self.find(name)
        if path is None:
            raise HttpProblem(404, f"{self.id} has no file {name}")
        return path.open("rb")

    def read(self, name: str) -> bytes | None:
        path = self.find(name)
        if path is None:
            return None
        limit, size = MAX_MANIFEST if name == MANIFEST else MAX_DOCUMENT, path.stat().st_size
        if size > limit:
            raise HttpProblem(503, f"{name} of {self.id} has {size:,} bytes; the limit is {limit:,}")
        return path.read_bytes()

    def entries(self, subfolder: str) -> list[os.DirEntry[str]]:
        """Return the entries of a subfolder; empty if it is missing or outside the root."""
        folder = self.path / subfolder
        if not folder.is_dir() or not self.root.contains(folder):
            return []
        with os.scandir(folder) as entries:
            return list(entries)


def make_roots(folders: Sequence[Path]) -> list[Root]:
    """Create one root per distinct folder; duplicate names get a number."""
    roots: list[Root] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; expected a run, an evaluation, or a folder of them")
        path = folder.resolve()
        if any(path == root.path for root in roots):
            continue
        taken, name = {root.name for root in roots}, path.name or "root"
        roots.append(Root(name if name not in taken else f"{name}~{len(roots) + 1}", path))
    return roots


Kind = Literal["run", "evaluation"]

FORMAT = 1
STEP_FILE = re.compile(r"step-(\d{1,12})\.jsonl")
TAIL = 1 << 16  # bytes to read at the end of a metrics file to find its last line
MAX_METRICS = 2000  # rows per response
METRICS, EVENTS, WORKERS = "metrics.jsonl", "events.jsonl", "workers.jsonl"
MAX_WORKERS_TAIL = 1 << 20  # bytes of the newest steps, which are summed
FINAL: dict[Kind, str] = {"run": "summary.json", "evaluation": "results.json"}  # written when finished
GROWING: dict[Kind, str] = {"run": METRICS, "evaluation": "trajectories.jsonl"}
HEADLINES = ("reward/mean", "episode/em", "evaluate/em", "loss")


@dataclass(slots=True)
class Library:
    """Runs and evaluations below the roots; the only place that resolves ids from clients."""

    roots: Sequence[Root]
    _known: dict[Kind, dict[str, ViewedFolder]] = field(default_factory=lambda: {"run": {}, "evaluation": {}})
    _lock: Lock = field(default_factory=Lock)

    def find(self, kind: Kind, name: str) -> ViewedFolder:
        """Look up a run or evaluation by id, rescanning the roots if the id is unknown."""
        if name not in self._known[kind]:
            self.scan()
        folder = self._known[kind].get(name)
        if folder is None:
            raise HttpProblem(404, f"there is no {kind} {name[:200]!r}; /api/library lists all")
        return folder

    def scan(self) -> list[Tree]:
        """Scan the roots; return the folders that cannot be shown, with the reason for each."""
        with self._lock:
            known: dict[Kind, dict[str, ViewedFolder]] = {"run": {}, "evaluation": {}}
            broken: list[Tree] = []
            for folder in (ViewedFolder(*each, root) for root in self.roots for each in root.folders()):
                try:
                    if (kind := _kind_of(folder)) is not None:
                        known[kind][folder.id] = folder
                except (InputError, OSError, HttpProblem) as error:
                    broken.append({"id": folder.id, "detail": str(error)})
            self._known = known
            return broken

    def counts(self) -> tuple[int, int]:
        return len(self._known["run"]), len(self._known["evaluation"])

    def overview(self) -> Tree:
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
    """Parse a JSON file with credentials redacted; None if the file is missing."""
    text = folder.read(name)
    if text is None:
        return None
    try:
        found: Tree = redact_tree(check_nesting(parse_object(text, f"{name} of {folder.id}")))
    except ValueError as error:
        raise InputError(f"{name} of {folder.id} cannot be shown: {error}") from error
    return found


def status(folder: ViewedFolder, kind: Kind) -> Tree:
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
    """Return the kind of a folder from its manifest; None for other folders, such as an index."""
    if not folder.root.contains(folder.path):
        raise InputError(f"{folder.id} is a link that leaves the viewed folder; pass its target as well")
    manifest = read_document(folder, MANIFEST)
    if manifest is None:
        raise InputError(f"{MANIFEST} of {folder.id} is not a regular file, or is a link that leaves the viewed folder")
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
    """Look up a scalar in nested tables; None if it is missing."""
    for name in names:
        tree = tree.get(name, {}) if isinstance(tree, Mapping) else {}
    return tree if not isinstance(tree, Mapping) else None


def metrics_since(folder: ViewedFolder, cursor: str | None) -> Tree:
    """Return metrics and events after a cursor, or all of them with `reset` if the run has rewritten its files."""
    parts = ["0"] * 4 if cursor is None else cursor.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise HttpProblem(400, f"cursor is {str(cursor)[:80]!r}; expected the cursor of the last response, or none")
    end, check, events_end, events_check = map(int, parts)
    positions = {METRICS: FilePosition(end, check), EVENTS: FilePosition(events_end, events_check)}
    valid = cursor is not None and all(_is_unchanged(folder, *each) for each in positions.items())
    if not valid:
        positions = dict.fromkeys(positions, FilePosition())
    (rows, rows_at), (events, events_at) = (_rows_after(folder, *each) for each in positions.items())
    columns = dict.fromkeys(name for row in rows for name in row)
    state = status(folder, "run")
    return {
        "cursor": f"{rows_at.end}.{rows_at.check}.{events_at.end}.{events_at.check}",
        "reset": not valid,
        "more": MAX_METRICS in (len(rows), len(events)),
        "state": state["state"],
        "age_seconds": state["age_seconds"],
        "columns": {name: [row.get(name) for row in rows] for name in columns},
        "events": events,
    }


def recent_workers(folder: ViewedFolder) -> Tree:
    """Sum the figures of each rollout worker over the newest recorded steps; empty if no worker was recorded."""
    if folder.find(WORKERS) is None:
        return {"steps": None, "workers": []}
    with folder.open(WORKERS) as file:
        start = max(0, file.seek(0, os.SEEK_END) - MAX_WORKERS_TAIL)
        file.seek(start)
        lines = file.read(MAX_WORKERS_TAIL).split(b"\n")[1 if start else 0 : -1]  # complete lines
    steps: list[int] = []
    totals: dict[tuple[int, str], Counter[str]] = {}
    try:
        for row in map(parse_json, lines):
            steps.append(int(row["step"]))
            for worker in row["workers"]:
                figures = {name: value for name, value in worker.items() if name not in ("number", "node")}
                totals.setdefault((int(worker["number"]), str(worker["node"])), Counter()).update(figures)
    except (InvalidRow, LookupError, TypeError, ValueError, AttributeError) as error:
        raise HttpProblem(503, f"{WORKERS} of {folder.id} has an unreadable line: {error}; remove it") from error
    workers = [{"number": number, "node": node, **total} for (number, node), total in sorted(totals.items())]
    return {"steps": [min(steps), max(steps)] if steps else None, "workers": workers}


def _is_unchanged(folder: ViewedFolder, name: str, position: FilePosition) -> bool:
    if folder.find(name) is None:
        return position.end == 0
    with folder.open(name) as file:
        return position.matches(file)


def _rows_after(folder: ViewedFolder, name: str, position: FilePosition) -> tuple[list[Tree], FilePosition]:
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
