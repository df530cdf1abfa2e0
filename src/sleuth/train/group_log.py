"""Finished groups on disk, until a checkpoint includes the step that trained on them.

A resumed run trains again on the groups of the steps after its checkpoint, and asks no question of theirs again. Each
row is a group, the groups of a step, or groups to sample again; a row is complete if its line is. Each rank writes the
groups that it samples to files of its own, and every rank reads the files of all.
"""

import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sleuth.errors import InputError
from sleuth.evaluate.folder import read_score, read_trajectory
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.runs.atomic import PRIVATE
from sleuth.runs.json_files import append_row, read_rows
from sleuth.runs.trajectory import trajectory_row
from sleuth.train.data import QuestionStream
from sleuth.train.group_queue import QueuedGroup, SampledGroup

FILE = re.compile(r"groups-(\d+)(?:-rank-(\d+))?\.jsonl")


@dataclass(slots=True)
class LogFile:
    """What a file holds: the queued groups with rows in it, and its newest step."""

    path: Path
    groups: set[int] = field(default_factory=set)
    step: int = 0


@dataclass(slots=True)
class LoggedGroups:
    """Groups read from disk by id, and the ids of the groups of each step."""

    groups: dict[int, QueuedGroup] = field(default_factory=dict)
    steps: dict[int, list[int]] = field(default_factory=dict)


class GroupLog:
    """Append-only files in a folder; a new one is begun with each checkpoint, and old ones are removed as a whole.

    Every rank appends and prunes its own files. Rank 0 also writes the rows that concern all ranks, and prunes the
    files of earlier processes.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self._folder, self._rank, self._lock = folder, rank, threading.Lock()
        self._files: list[LogFile] = []
        self._trained: dict[int, int] = {}  # the step of each group

    def load(self, stream: QuestionStream) -> LoggedGroups:
        """Read the rows of all ranks and begin a new file; raises InputError if a row cannot be read.

        No rank may write until all have read: otherwise two ranks would number their new files differently.
        """
        found = LoggedGroups()
        self._files, self._trained = [], {}
        self._folder.mkdir(mode=PRIVATE, exist_ok=True)
        for path in sorted(self._paths(), key=_order):
            file = LogFile(path)
            for number, row in enumerate(read_rows(path), start=1):
                try:
                    self._read(row, file, found, stream)
                except (LookupError, TypeError, ValueError, InputError) as error:
                    raise InputError(
                        f"{path}, line {number} is not a group of episodes ({error}); restore the file, or remove it "
                        "to sample its groups again"
                    ) from error
            if self._rank == 0:
                self._files.append(file)
        self._begin_file()
        return found

    def append_group(self, queued: QueuedGroup, group: SampledGroup) -> None:
        """Write a finished group, flushed to disk."""
        samples = [trajectory_row(each.trajectory, each.score) for each in group.samples]
        row = {"id": queued.id, "version": queued.version, "position": group.position, "samples": samples}
        with self._lock:
            append_row(self._files[-1].path, row)
            self._files[-1].groups.add(queued.id)

    def append_step(self, step: int, groups: Sequence[int]) -> None:
        """Write which groups a step trains on; all ranks call it, rank 0 writes."""
        with self._lock:
            if self._rank == 0:
                append_row(self._files[-1].path, {"step": step, "groups": list(groups)})
                self._files[-1].step = step
            self.mark_trained(groups, step)

    def append_dropped(self, groups: Collection[int]) -> None:
        """Write that these groups are sampled again; all ranks call it, rank 0 writes."""
        if groups and self._rank == 0:
            with self._lock:
                append_row(self._files[-1].path, {"dropped": sorted(groups)})

    def mark_trained(self, groups: Iterable[int], step: int) -> None:
        """Note that a step, of which there is a row or a checkpoint, trains on these groups."""
        self._trained |= dict.fromkeys(groups, step)

    def prune(self, step: int) -> None:
        """Remove the files whose groups are all included in the checkpoint of a step; begin a new file."""
        with self._lock:
            for file in self._files:
                if file.step <= step and all(self._trained.get(each, step + 1) <= step for each in file.groups):
                    file.path.unlink(missing_ok=True)
            self._files = [file for file in self._files if file.path.exists()]
            self._begin_file()

    def clear(self) -> None:
        """Remove all groups, because the run goes back to an earlier step."""
        with self._lock:
            for file in self._files:
                file.path.unlink(missing_ok=True)
            self._files, self._trained = [], {}
            self._begin_file()

    def _paths(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if FILE.fullmatch(path.name)] if self._folder.is_dir() else []

    def _begin_file(self) -> None:
        number = max((_order(path)[0] for path in self._paths()), default=0) + 1
        suffix = f"-rank-{self._rank}" if self._rank else ""
        self._files.append(LogFile(self._folder / f"groups-{number}{suffix}.jsonl"))

    def _read(self, row: Mapping[str, Any], file: LogFile, found: LoggedGroups, stream: QuestionStream) -> None:
        if "step" in row:
            found.steps[row["step"]] = row["groups"]
            file.step = max(file.step, row["step"])
            return
        if "dropped" in row:
            for each in row["dropped"]:
                found.groups.pop(each, None)
            return
        (question,) = stream.take(row["position"], 1)
        samples = tuple(
            ScoredTrajectory(read_trajectory(each, question), read_score(each["score"])) for each in row["samples"]
        )
        queued = found.groups.setdefault(row["id"], QueuedGroup(row["id"], row["version"]))
        queued.attempts.append(SampledGroup(row["position"], samples))
        file.groups.add(row["id"])


def _order(path: Path) -> tuple[int, int]:
    """Return number and rank of a file: what rank 0 notes when a run resumes comes before the new groups of others."""
    match = FILE.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)
