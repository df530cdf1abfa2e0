"""The run folder: manifest, metrics, events, trajectories and checkpoints; files are renamed when complete."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from sleuth.errors import InputError
from sleuth.runs.atomic import (
    PRIVATE,
    atomic_write,
    explain_write_errors,
    remove_atomically,
    remove_leftovers,
    write_private,
)
from sleuth.runs.json_files import Row, append_row, encode_json, read_json, read_rows, rewrite_rows, write_rows
from sleuth.runs.lock import locked
from sleuth.runs.trajectory import FORMAT

STEP = re.compile(r"step-(\d+)")
BEST = "best.json"
WORKERS = "workers.jsonl"
REPEAT = "remove that line and the checkpoints after it to repeat the step"
ROLLBACK = "rollback"  # action of an event after which the run continues from an earlier step


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder on disk: `create` or `open` it, and `lock` it for training."""

    path: Path

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any]) -> "Run":
        """Create a run folder with its manifest; raise InputError if the path exists."""
        if path.exists():
            raise InputError(
                f"{path} already exists and was not changed; choose another folder, "
                f"or continue that run with: sleuth train --resume {path}"
            )
        with atomic_write(path) as folder:
            for inner in (folder, folder / "trajectories", folder / "checkpoints"):
                inner.mkdir(mode=PRIVATE)
            write_private(folder / "manifest.json", encode_json({"format": FORMAT, "kind": "run", **manifest}))
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Open an existing run folder; raise InputError if the path is not a run folder or has another format."""
        if not (path / "manifest.json").is_file():
            raise InputError(f"{path} is not a run folder: it has no manifest.json; give the folder of a run")
        run = cls(path)
        manifest = run.manifest()
        if manifest.get("kind") != "run":
            raise InputError(
                f"{path} is not a run folder: its manifest has kind {manifest.get('kind')!r}, expected 'run'; "
                "give the folder of a run"
            )
        if manifest.get("format") != FORMAT:
            found = manifest.get("format")
            raise InputError(f"{path} has run format {found!r}, but this version of Sleuth reads format {FORMAT}")
        return run

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run for training, and remove the unfinished files of an interrupted process."""
        busy = f"another process is training in {self.path}; wait for it, or end it first"
        with locked(self.path / "lock", busy):
            for folder in (self.path, self.path / "trajectories", self.path / "checkpoints"):
                with explain_write_errors(folder):
                    folder.mkdir(exist_ok=True)
                    remove_leftovers(folder)
            yield

    def manifest(self) -> Row:
        return read_json(self.path / "manifest.json")

    def config_and_inputs(self) -> tuple[Row, Row]:
        """Return the settings the run was started with and the fingerprints of its input files."""
        manifest = self.manifest()
        for name in ("config", "inputs"):
            if not isinstance(manifest.get(name), dict):
                raise _damaged(self.path / "manifest.json", f"it has no {name}", "start a new run")
        return manifest["config"], manifest["inputs"]

    def record_versions(self, step: int, versions: Mapping[str, Any]) -> None:
        """Record the software versions used from a step on; entries for later steps are replaced."""
        manifest = self.manifest()
        kept = [part for part in _parts(manifest) if part["step"] < step]
        self.write_json("manifest.json", {**manifest, "parts": [*kept, {"step": step, **versions}]})

    def current_versions(self) -> Row:
        """Return the software versions of the newest steps, with the `step` at which they were first used."""
        return _parts(self.manifest())[-1]

    def append_metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Record the metrics of a step, flushed to disk."""
        append_row(self.path / "metrics.jsonl", {"step": step, **values})

    def metrics(self) -> Iterator[Row]:
        """Yield the recorded steps, oldest first; a line still being written is skipped."""
        path = self.path / "metrics.jsonl"
        for number, row in _numbered_rows(path):
            for name, value in row.items():
                if not isinstance(value, int | float):
                    raise _damaged(path, f"line {number} has {name} = {value!r}, expected a number", REPEAT)
            yield row

    def require_complete_metrics(self, step: int) -> None:
        """Raise InputError unless every step up to `step` has exactly one row of metrics."""
        steps = [row["step"] for row in self.metrics() if row["step"] <= step]
        if steps == list(range(step + 1)):
            return
        gap = next((n for n, found in enumerate(steps) if found != n), len(steps))
        found = f"step {steps[gap]}" if gap < len(steps) else "nothing"
        remedy = f"remove the checkpoints after step {gap - 1} to repeat what is missing" if gap else "start a new run"
        raise InputError(
            f"{self.path / 'metrics.jsonl'} is incomplete: found {found} instead of step {gap}, but "
            f"{self.checkpoint(step)} was written after it; restore the file, or {remedy}"
        )

    def append_event(self, step: int, content: Mapping[str, Any]) -> None:
        """Record the verdict of a guard on a step, flushed to disk."""
        append_row(self.path / "events.jsonl", {"step": step, **content})

    def events(self) -> Iterator[Row]:
        """Yield the verdicts of the guards, oldest first."""
        path = self.path / "events.jsonl"
        for number, row in _numbered_rows(path):
            if not isinstance(row.get("action"), str):
                raise _damaged(path, f"line {number} has no action", "remove that line")
            yield row

    def append_workers(self, step: int, workers: Iterable[Mapping[str, Any]]) -> None:
        """Record what each rollout worker of a cluster did since the step before, flushed to disk."""
        append_row(self.path / WORKERS, {"step": step, "workers": list(workers)})

    def trajectories(self, step: int) -> Path:
        return self.path / "trajectories" / f"step-{step}.jsonl"

    def write_trajectories(self, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write the trajectories of a step (rows from `trajectory_row`) and their offsets."""
        write_rows(self.trajectories(step), rows)
        return self.trajectories(step)

    def write_token_log(self, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write the advantages, weights and ratios of the tokens of a step, one row per trajectory."""
        path = self.path / "trajectories" / f"step-{step}.learned.jsonl"
        write_rows(path, rows)
        return path

    def rewind(self, step: int) -> None:
        """Remove metrics, trajectories, workers and events after a step; keep checkpoints and rollback events."""
        versions = self.current_versions()
        if versions.pop("step") > max(step, 0):
            # After a rollback, the newest versions produce the following steps.
            self.record_versions(max(step, 0), versions)
        rewrite_rows(self.path / "metrics.jsonl", [row for row in self.metrics() if row["step"] <= step])
        if (self.path / "events.jsonl").exists():
            kept = [event for event in self.events() if event["step"] <= step or event["action"] == ROLLBACK]
            rewrite_rows(self.path / "events.jsonl", kept)
        if (workers := self.path / WORKERS).exists():
            rewrite_rows(workers, [row for _, row in _numbered_rows(workers) if row["step"] <= step])
        for path in sorted((self.path / "trajectories").iterdir()):
            if STEP.match(path.name) and step_of(path) > step:
                path.unlink()

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step}"

    def checkpoints(self) -> list[Path]:
        """List the complete checkpoints, oldest first."""
        folder = self.path / "checkpoints"
        # The folder is missing if nothing was saved or the user deleted it.
        folders = (path for path in (folder.iterdir() if folder.is_dir() else ()) if STEP.fullmatch(path.name))
        return sorted(folders, key=step_of)

    def latest(self) -> Path | None:
        return max(self.checkpoints(), key=step_of, default=None)

    def best(self) -> Path | None:
        """Return the checkpoint with the highest held-out score; None if there is no score or the best was removed."""
        best = self._best()
        folder = None if best is None else self.checkpoint(best[0])
        return folder if folder is not None and folder.is_dir() else None

    def _best(self) -> tuple[int, float] | None:
        match self.read_json(BEST):
            case None:
                return None
            case {"step": int() as step, "score": int() | float() as score}:
                return step, score
        raise _damaged(self.path / BEST, "it has no step and score", "remove it")

    def record_score(self, step: int, score: float) -> None:
        """Record the held-out score of a checkpoint if it is the best so far."""
        best = self._best()
        if self.best() is None or best is None or score > best[1]:
            self.write_json(BEST, {"step": step, "score": score})

    def prune(self, keep: int, also: Collection[int] = ()) -> None:
        """Remove all checkpoints except the newest `keep`, the best, and those of the steps in `also`."""
        best = self.best()
        for path in self.checkpoints()[:-keep]:
            if path != best and step_of(path) not in also:
                remove_atomically(path)

    def remove_checkpoints_after(self, step: int) -> None:
        """Remove the checkpoints after a step, newest first, so that an interrupted rollback can be repeated."""
        for path in reversed(self.checkpoints()):
            if step_of(path) > step:
                remove_atomically(path)
        if self.best() is None:
            # A new checkpoint of the same step will have different weights.
            (self.path / BEST).unlink(missing_ok=True)

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write a JSON document into the run folder atomically."""
        with atomic_write(self.path / name) as path:
            write_private(path, encode_json(content))
        return self.path / name

    def read_json(self, name: str) -> Row | None:
        """Read a JSON document of the run folder; None if the file does not exist."""
        path = self.path / name
        return read_json(path) if path.exists() else None

    def summary(self) -> Row | None:
        """Return the summary of a finished run; None if the run is not finished."""
        return self.read_json("summary.json")

    def remove_summary(self) -> None:
        """Remove the summary, which marks the run as not finished."""
        (self.path / "summary.json").unlink(missing_ok=True)

    def write_summary(self, content: Mapping[str, Any]) -> Path:
        return self.write_json("summary.json", content)


def _parts(manifest: Row) -> list[Row]:
    """Return the software versions with the step of their first use; old manifests have only the initial versions."""
    first: Row = {name: manifest[name] for name in ("code", "torch", "transformers") if name in manifest}
    parts = manifest.get("parts") or [{"step": 0, **first}]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise InputError(
            f"the manifest of the run has parts = {str(parts)[:60]!r}, expected a list of objects; remove it"
        )
    for part in parts:
        _require_step(part, "a part in the manifest of the run")
    return parts


def _numbered_rows(path: Path) -> Iterator[tuple[int, Row]]:
    for number, row in enumerate(read_rows(path) if path.exists() else (), 1):
        _require_step(row, f"{path}, line {number}")
        yield number, row


def _require_step(row: Row, place: str) -> None:
    step = row.get("step")
    if type(step) is not int or step < 0:
        raise InputError(f"{place} has step = {step!r}, expected a whole number; {REPEAT}")


def _damaged(path: Path, problem: str, remedy: str) -> InputError:
    return InputError(f"{path} is damaged: {problem}; restore it, or {remedy}")


def next_run_path(folder: Path, name: str) -> Path:
    """Return the first unused path of `name-1`, `name-2`, ... in a folder."""
    return next(path for n in count(1) if not (path := folder / f"{name}-{n}").exists())


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint or trajectories file."""
    match = STEP.match(path.name)
    if match is None:
        raise InputError(f"{path} is not named after a step; expected a name like step-20")
    return int(match[1])
