"""The run folder: manifest, metrics, trajectories, checkpoints; whatever bears its final name is complete."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from sleuth.errors import InputError
from sleuth.runs.documents import FORMAT, Row, document, read_json
from sleuth.runs.failures import explained
from sleuth.runs.lock import locked
from sleuth.runs.replacing import PRIVATE, replacing, write_private
from sleuth.runs.rows import append_row, read_rows, rewrite_rows, write_rows
from sleuth.runs.temporaries import TEMPORARY, remove, remove_leftovers

STEP = re.compile(r"step-(\d+)")
BEST = "best.json"
REPEAT = "remove that line and the checkpoints after it to repeat the step"
ROLLBACK = "rollback"  # the action of an event after which a run goes on from an earlier step


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder on disk; made by `create`, found by `open`, `held` while it is trained."""

    path: Path

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any]) -> "Run":
        """A new folder with its manifest; an existing path is never touched."""
        if path.exists():
            raise InputError(
                f"{path} exists already and is left as it is; choose another folder, "
                f"or continue that run with: sleuth train --resume {path}"
            )
        with replacing(path) as folder:
            for inner in (folder, folder / "trajectories", folder / "checkpoints"):
                inner.mkdir(mode=PRIVATE)
            write_private(folder / "manifest.json", document({"format": FORMAT, "kind": "run", **manifest}))
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "Run":
        """An existing run folder, in a format this version reads."""
        if not (path / "manifest.json").is_file():
            raise InputError(f"{path} is not a run folder: it holds no manifest.json; give the folder a run wrote")
        run = cls(path)
        if run.manifest().get("kind") != "run":
            raise InputError(
                f"{path} is not a run folder, its manifest is of something else; give the folder a run wrote"
            )
        if run.manifest().get("format") != FORMAT:
            found = run.manifest().get("format")
            raise InputError(f"{path} has run format {found!r}, and this version of Sleuth reads format {FORMAT}")
        return run

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from training here, and removes what an interrupted one left half-written.

        The lock ends with the process, however that ends.
        """
        with locked(self.path / "lock", f"another process is training in {self.path}; wait for it, or end it first"):
            for folder in (self.path, self.path / "trajectories", self.path / "checkpoints"):
                with explained(folder):
                    folder.mkdir(exist_ok=True)
                    remove_leftovers(folder)
            yield

    def manifest(self) -> Row:
        return read_json(self.path / "manifest.json")

    def begun_with(self) -> tuple[Row, Row]:
        """The settings that the run was begun with, and the files it was made from."""
        written = self.manifest()
        found = [written.get(name) for name in ("config", "inputs")]
        for name, table in zip(("config", "inputs"), found, strict=True):
            if not isinstance(table, dict):
                raise _damaged(self.path / "manifest.json", f"it has no {name}", "begin a new run")
        config, inputs = found
        return config or {}, inputs or {}

    def begin_part(self, step: int, versions: Mapping[str, Any]) -> None:
        """Records that other versions made the run from a step on; a part none of whose steps is left gives way."""
        written = self.manifest()
        kept = [each for each in _parts(written) if each["step"] < step]
        self.write_json("manifest.json", {**written, "parts": [*kept, {"step": step, **versions}]})

    def newest_part(self) -> Row:
        """The versions that made the newest steps, and the step after which they began."""
        return _parts(self.manifest())[-1]

    def append_metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Records a step for good: the line is on the disk when this returns."""
        append_row(self.path / "metrics.jsonl", {"step": step, **values})

    def metrics(self) -> Iterator[Row]:
        """The steps recorded, oldest first; a line still being written is not there yet."""
        path = self.path / "metrics.jsonl"
        for number, row in enumerate(read_rows(path) if path.exists() else (), 1):
            _require_step(row, f"{path}, line {number}")
            for name, value in row.items():
                if not isinstance(value, int | float):
                    raise _damaged(path, f"line {number} has {name} = {value!r}, expected a number", REPEAT)
            yield row

    def require_metrics(self, step: int) -> None:
        """Refuses to go on from the checkpoint of a step where a step before it has no row, or two."""
        recorded = [row.get("step") for row in self.metrics() if row.get("step", 0) <= step]
        if recorded == list(range(step + 1)):
            return
        gap = next((n for n, found in enumerate(recorded) if found != n), len(recorded))
        again = f"remove the checkpoints after step {gap - 1} to repeat what is missing" if gap else "begin a new run"
        raise InputError(
            f"{self.path / 'metrics.jsonl'} is not whole: {_found(recorded, gap)} where step {gap} should be, and "
            f"{self.checkpoint(step)} was written after it; put the file back, or {again}"
        )

    def append_event(self, step: int, content: Mapping[str, Any]) -> None:
        """Records what a guard said of a step, for good as a metric is."""
        append_row(self.path / "events.jsonl", {"step": step, **content})

    def events(self) -> Iterator[Row]:
        """What the guards said, oldest first."""
        path = self.path / "events.jsonl"
        for number, row in enumerate(read_rows(path) if path.exists() else (), 1):
            _require_step(row, f"{path}, line {number}")
            if not isinstance(row.get("action"), str):
                raise _damaged(path, f"line {number} has no action", "remove that line")
            yield row

    def trajectories(self, step: int) -> Path:
        return self.path / "trajectories" / f"step-{step}.jsonl"

    def write_trajectories(self, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Writes the trajectories of a step, made by `row`, with their offsets beside them."""
        write_rows(self.trajectories(step), rows)
        return self.trajectories(step)

    def write_learned(self, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Writes what a step made of its trajectories, beside them row by row: advantage, weight and ratios."""
        path = self.path / "trajectories" / f"step-{step}.learned.jsonl"
        write_rows(path, rows)
        return path

    def rewind(self, step: int) -> None:
        """Drops what was recorded after a step: metrics, trajectories and events; checkpoints stay.

        So do rollbacks: what the run does from here on follows from them.
        """
        newest = self.newest_part()
        if newest["step"] > max(step, 0):
            # A rollback: what comes is made by the newest part from an earlier step on.
            self.begin_part(max(step, 0), {name: newest[name] for name in newest if name != "step"})
        rewrite_rows(self.path / "metrics.jsonl", [each for each in self.metrics() if each["step"] <= step])
        if (self.path / "events.jsonl").exists():
            lasting = [each for each in self.events() if each["step"] <= step or each.get("action") == ROLLBACK]
            rewrite_rows(self.path / "events.jsonl", lasting)
        for path in sorted((self.path / "trajectories").iterdir()):
            if STEP.match(path.name) and step_of(path) > step:
                path.unlink()

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step}"

    def checkpoints(self) -> list[Path]:
        """The complete checkpoints, oldest first."""
        folder = self.path / "checkpoints"
        # Missing where nothing was saved, or where somebody made room.
        folders = (path for path in (folder.iterdir() if folder.is_dir() else ()) if STEP.fullmatch(path.name))
        return sorted(folders, key=step_of)

    def latest(self) -> Path | None:
        return max(self.checkpoints(), key=step_of, default=None)

    def best(self) -> Path | None:
        """The checkpoint with the highest held-out score, where one was scored and is still there."""
        found = self._best()
        folder = None if found is None else self.checkpoint(found[0])
        return folder if folder is not None and folder.is_dir() else None

    def _best(self) -> tuple[int, float] | None:
        match self.read_json(BEST):
            case None:
                return None
            case {"step": int() as step, "score": int() | float() as score}:
                return step, score
        raise _damaged(self.path / BEST, "it has no step and score", "remove it")

    def score(self, step: int, score: float) -> None:
        """Records the held-out score of a checkpoint, where it is higher than that of the best so far."""
        best = self._best()
        if self.best() is None or best is None or score > best[1]:
            self.write_json(BEST, {"step": step, "score": score})

    def prune(self, keep: int, also: Collection[int] = ()) -> None:
        """Removes all checkpoints but the newest, the best, and those of the steps `also`.

        Each loses its name first, so that half of one is never loaded.
        """
        best = self.best()
        for path in self.checkpoints()[:-keep]:
            if path != best and step_of(path) not in also:
                remove(path.rename(path.with_name(f"{TEMPORARY}{path.name}")))

    def forget(self, step: int) -> None:
        """Removes the checkpoints after a step, the newest first, so that a rollback broken off is begun anew."""
        for path in reversed(self.checkpoints()):
            if step_of(path) > step:
                remove(path.rename(path.with_name(f"{TEMPORARY}{path.name}")))
        if self.best() is None:
            # A later checkpoint of the same step is another.
            (self.path / BEST).unlink(missing_ok=True)

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Writes one JSON document into the run folder, whole or not at all."""
        with replacing(self.path / name) as path:
            write_private(path, document(content))
        return self.path / name

    def read_json(self, name: str) -> Row | None:
        """A JSON document of the run folder; None where it is not there."""
        path = self.path / name
        return read_json(path) if path.exists() else None

    def summary(self) -> Row | None:
        """What a finished run reached; None while it is not finished."""
        return self.read_json("summary.json")

    def drop_summary(self) -> None:
        """A run that goes on is not finished."""
        (self.path / "summary.json").unlink(missing_ok=True)

    def write_summary(self, content: Mapping[str, Any]) -> Path:
        return self.write_json("summary.json", content)


def _parts(manifest: Row) -> list[Row]:
    """The parts of a run by the versions that made them; an older version wrote those of the beginning alone."""
    begun: Row = {name: manifest[name] for name in ("code", "torch", "transformers") if name in manifest}
    parts = manifest.get("parts") or [{"step": 0, **begun}]
    if not isinstance(parts, list) or not all(isinstance(each, dict) for each in parts):
        raise InputError(
            f"the manifest of a run has parts = {str(parts)[:60]!r}, expected a list of objects; remove it"
        )
    for each in parts:
        _require_step(each, "a part in the manifest of a run")
    return parts


def _require_step(row: Row, place: str) -> None:
    step = row.get("step")
    if type(step) is not int or step < 0:
        raise InputError(f"{place} has step = {step!r}, expected a whole number; {REPEAT}")


def _damaged(path: Path, problem: str, remedy: str) -> InputError:
    return InputError(f"{path} is not as a run writes it: {problem}; put it back, or {remedy}")


def _found(steps: list[Any], place: int) -> str:
    return f"step {steps[place]} is" if place < len(steps) else "nothing is"


def fresh(folder: Path, name: str) -> Path:
    """A path for a new run that nothing uses yet: `name-1`, `name-2`, ..."""
    return next(path for n in count(1) if not (path := folder / f"{name}-{n}").exists())


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint or trajectories file."""
    match = STEP.match(path.name)
    if match is None:
        raise InputError(f"{path} is not named for a step; expected a name like step-20")
    return int(match[1])
