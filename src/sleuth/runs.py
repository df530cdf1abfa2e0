"""The run folder: manifest, metrics, trajectories, checkpoints; whatever bears its final name is complete."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from platform import node
from secrets import token_hex
from typing import Any
from zlib import crc32

from sleuth import __version__
from sleuth.errors import InputError
from sleuth.records import Access, Answer, Hit, Malformed, Question, Score, Search, Trajectory, Turn, run_lengths

FORMAT = 1
TEMPORARY = ".tmp-"  # before the name that something will have; before that stands whose it is
OWNER = re.compile(r"\.([0-9a-f]{8})-(\d{1,9})-[0-9a-f]{6}")  # machine, process, and letters of its own
STEP = re.compile(r"step-(\d+)")
BEST = "best.json"
TITLE = 200  # letters of a passage's title that are kept; one without a title begins with its text
ROLLBACK = "rollback"  # the action of an event after which a run goes on from an earlier step

REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space and run the command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the command again",
    errno.EFBIG: "it is larger than files may be here; raise the limit (ulimit -f) or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission is denied; choose another folder",
    errno.ENOTDIR: "a file stands where a folder should be; choose another folder",
    errno.EEXIST: "a file stands where a folder should be; choose another folder",
}

Row = dict[str, Any]


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
                inner.mkdir()
            (folder / "manifest.json").write_bytes(_document({"format": FORMAT, "kind": "run", **manifest}))
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
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"another process is training in {self.path}; wait for it, or end it first") from error
            for folder in (self.path, self.path / "trajectories", self.path / "checkpoints"):
                remove_leftovers(folder)
            yield

    def manifest(self) -> Row:
        return read_json(self.path / "manifest.json")

    def append_metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Records a step for good: the line is on the disk when this returns."""
        _append(self.path / "metrics.jsonl", {"step": step, **values})

    def metrics(self) -> Iterator[Row]:
        """The steps recorded, oldest first; a line still being written is not there yet."""
        path = self.path / "metrics.jsonl"
        return read_rows(path) if path.exists() else iter(())

    def append_event(self, step: int, content: Mapping[str, Any]) -> None:
        """Records what a guard said of a step, for good as a metric is."""
        _append(self.path / "events.jsonl", {"step": step, **content})

    def events(self) -> Iterator[Row]:
        """What the guards said, oldest first."""
        path = self.path / "events.jsonl"
        return read_rows(path) if path.exists() else iter(())

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
        _rewrite(self.path / "metrics.jsonl", [each for each in self.metrics() if each["step"] <= step])
        if (self.path / "events.jsonl").exists():
            lasting = [each for each in self.events() if each["step"] <= step or each.get("action") == ROLLBACK]
            _rewrite(self.path / "events.jsonl", lasting)
        for path in sorted((self.path / "trajectories").iterdir()):
            if STEP.match(path.name) and step_of(path) > step:
                path.unlink()

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step}"

    def checkpoints(self) -> list[Path]:
        """The complete checkpoints, oldest first."""
        folders = (path for path in (self.path / "checkpoints").iterdir() if STEP.fullmatch(path.name))
        return sorted(folders, key=step_of)

    def latest(self) -> Path | None:
        return max(self.checkpoints(), key=step_of, default=None)

    def best(self) -> Path | None:
        """The checkpoint with the highest held-out score, where one was scored and is still there."""
        path = self.path / BEST
        folder = self.checkpoint(read_json(path)["step"]) if path.exists() else None
        return folder if folder is not None and folder.is_dir() else None

    def score(self, step: int, score: float) -> None:
        """Records the held-out score of a checkpoint, where it is higher than that of the best so far."""
        if self.best() is None or score > read_json(self.path / BEST)["score"]:
            self.write_json(BEST, {"step": step, "score": score})

    def prune(self, keep: int, also: Collection[int] = ()) -> None:
        """Removes all checkpoints but the newest, the best, and those of the steps `also`.

        Each loses its name first, so that half of one is never loaded.
        """
        best = self.best()
        for path in self.checkpoints()[:-keep]:
            if path != best and step_of(path) not in also:
                _remove(path.rename(path.with_name(f"{TEMPORARY}{path.name}")))

    def forget(self, step: int) -> None:
        """Removes the checkpoints after a step, the newest first, so that a rollback broken off is begun anew."""
        for path in reversed(self.checkpoints()):
            if step_of(path) > step:
                _remove(path.rename(path.with_name(f"{TEMPORARY}{path.name}")))
        if self.best() is None:
            # A later checkpoint of the same step is another.
            (self.path / BEST).unlink(missing_ok=True)

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Writes one JSON document into the run folder, whole or not at all."""
        with replacing(self.path / name) as path:
            path.write_bytes(_document(content))
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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling for a file or folder; it takes the name `path` on success and is gone on failure.

    What was there is replaced; what another process put there meanwhile is not. What killed processes of this machine
    left of the same is removed.
    """
    temporary = _temporary(path.name, path.parent)
    replaced = os.path.lexists(path)
    try:
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(path.name, path.parent)
            yield temporary
            sync_tree(temporary)
            if replaced:
                _rename(temporary, path)
            else:
                _rename_new(temporary, path)
            _sync(path.parent)
    except BaseException:
        _remove(temporary)
        raise


def remove_leftovers(folder: Path) -> None:
    """Removes what interrupted processes left half-written in a folder in which nobody else writes."""
    for path in folder.iterdir():
        owner, temporary, _ = path.name.partition(TEMPORARY)
        if temporary and (not owner or OWNER.fullmatch(owner)):
            _remove(path)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes JSONL with an offsets file beside it; the rows appear only when their offsets are there."""
    starts = array("Q")
    with replacing(path) as rows_path, replacing(_offsets(path)) as offsets_path:
        with rows_path.open("wb") as file:
            for each in rows:
                starts.append(file.tell())
                file.write(_line(each))
        if sys.byteorder == "big":
            starts.byteswap()
        offsets_path.write_bytes(starts.tobytes())


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSONL file in order; a last line without its end is still being written and is left out."""
    for number, line in enumerate(_lines(path), start=1):
        yield _parsed(line, f"{path}, line {number}")


def read_row(path: Path, n: int) -> Row:
    """Row `n`, counted from zero, found by the offsets beside the file."""
    with _readable(_offsets(path)).open("rb") as file:
        rows = file.seek(0, os.SEEK_END) // 8
        if not 0 <= n < rows:
            raise InputError(f"{path} has {rows} rows, counted from 0, and no row {n}")
        file.seek(8 * n)
        start = int.from_bytes(file.read(8), "little")
    with _readable(path).open("rb") as file:
        file.seek(start)
        return _parsed(file.readline(), f"{path}, row {n}")


def read_json(path: Path) -> Row:
    """One JSON document."""
    return _parsed(_readable(path).read_bytes(), str(path))


def fresh(folder: Path, name: str) -> Path:
    """A path for a new run that nothing uses yet: `name-1`, `name-2`, ..."""
    return next(path for n in count(1) if not (path := folder / f"{name}-{n}").exists())


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint or trajectories file."""
    match = STEP.match(path.name)
    if match is None:
        raise InputError(f"{path} is not named for a step; expected a name like step-20")
    return int(match[1])


def fingerprint(path: Path) -> str:
    """SHA-256 of a file, or of a folder by the names and contents of its files."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give a file or a folder")
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    inner = sorted((each.relative_to(path).as_posix(), fingerprint(each)) for each in path.rglob("*") if each.is_file())
    return hashlib.sha256(json.dumps(inner).encode()).hexdigest()


def code_version() -> str:
    """The version of the package, and in a checkout the commit, marked when files differ from it."""
    checkout = Path(__file__).parents[2]
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return __version__
    command = [git, "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    return f"{__version__}+{commit}" if commit else __version__


def row(trajectory: Trajectory, score: Score | None) -> Row:
    """A trajectory as a JSON row; `score` is None for an unusable one."""
    return {
        "version": FORMAT,
        "question_id": trajectory.question.id,
        "data_source": trajectory.question.data_source,
        "question": trajectory.question.question,
        "golden_answers": list(trajectory.question.golden_answers),
        "group": trajectory.group,
        "sample": trajectory.sample,
        "step": trajectory.step,
        "weights_versions": list(trajectory.versions),
        "ids": list(trajectory.ids),
        "origin": [list(run) for run in run_lengths(trajectory.sampled)],
        "logprobs": list(trajectory.logprobs),
        "turns": [_turn(turn, trajectory.question) for turn in trajectory.turns],
        "stop": trajectory.stop.value,
        "failure": trajectory.failure,
        "score": None if score is None else {"total": score.total, "parts": score.parts},
    }


def _turn(turn: Turn, question: Question) -> Row:
    match turn.action:
        case Search((query,)):
            action: Row = {"action": "search", "query": query}
        case Search(queries):
            action = {"action": "search", "queries": list(queries)}
        case Access(urls):
            action = {"action": "access", "urls": list(urls)}
        case Answer(text):
            action = {"action": "answer", "answer": text}
        case Malformed(reason):
            action = {"action": "malformed", "reason": reason}
    if len(turn.counts) > 1:
        action["counts"] = list(turn.counts)
    hits = [_hit(hit, question) for hit in turn.hits]
    said: Row = {"tokens": turn.tokens, "text": turn.text, "formed": turn.formed}
    return {**action, "hits": hits, "outcome": turn.outcome.value, **said}


def _hit(hit: Hit, question: Question) -> Row:
    """Where the question does not name its supporting passages, nothing is said about gold."""
    gold: Row = {"gold": hit.passage.id in question.supporting_ids} if question.supporting_ids else {}
    return {"id": hit.passage.id, "title": hit.passage.title[:TITLE], "score": hit.score, **gold}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns a failure to write into one sentence."""
    try:
        yield
    except Exception as error:
        remedy = _remedy(error, path)
        if remedy is None:
            raise
        raise InputError(f"{path} cannot be written: {remedy}") from error


def _remedy(error: Exception, path: Path) -> str | None:
    """What to do about a failed write; None where it was not this path that could not be written."""
    fault = _fault(error, path.parent)
    if fault is not None:
        return REMEDIES[fault]
    if isinstance(error, OSError) and error.filename:
        failed = Path(error.filename)
        if failed == path.parent or _is_temporary_of(failed, path):
            return f"{error.strerror}; choose another folder"
    return None


def _fault(error: Exception, folder: Path) -> int | None:
    """The error number behind a failed write, which safetensors puts into words and torch does not even mention."""
    if isinstance(error, OSError):
        return error.errno if error.errno in REMEDIES else None
    if isinstance(error, RuntimeError) and shutil.disk_usage(folder).free < 1 << 16:
        return errno.ENOSPC
    return next((fault for fault in REMEDIES if f"(os error {fault})" in str(error)), None)


def _rename(source: Path, target: Path) -> None:
    """Puts `source` in the place of `target`; a folder cannot take the name of another, so the old one steps aside."""
    aside = _temporary(f"old-{target.name}", target.parent)
    if target.is_dir():
        target.rename(aside)
    source.replace(target)
    _remove(aside)
    # Only now: one that was left between the two steps above was the last copy.
    _remove_abandoned(f"old-{target.name}", target.parent)


def _rename_new(source: Path, target: Path) -> None:
    """Gives `source` a name that nothing had when it was begun."""
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
            raise
        raise InputError(
            f"another process wrote {target} meanwhile, which is left as it is; choose another name, or remove it"
        ) from error


def _temporary(name: str, folder: Path) -> Path:
    """A name that no other process uses, nor this one again: machine, process and letters stand before it."""
    return folder / f".{_machine()}-{os.getpid()}-{token_hex(3)}{TEMPORARY}{name}"


def _is_temporary_of(path: Path, final: Path) -> bool:
    return path.parent == final.parent and path.name.endswith(f"{TEMPORARY}{final.name}")


def _remove_abandoned(name: str, folder: Path) -> None:
    """Removes temporaries of a name whose process is dead, as far as this machine can know."""
    for path in folder.iterdir():
        owner, _, rest = path.name.partition(TEMPORARY)
        known = OWNER.fullmatch(owner) if rest == name else None
        if known is not None and known[1] == _machine() and not _alive(int(known[2])):
            _remove(path)


def _machine() -> str:
    """Process numbers mean something on one machine only, and folders are shared by several."""
    return f"{crc32(node().encode()):08x}"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # someone else's
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def sync_tree(path: Path) -> None:
    for inner in path.rglob("*"):
        _sync(inner)
    _sync(path)


def _sync(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _offsets(path: Path) -> Path:
    """Starts of the rows, an array of little-endian uint64."""
    return path.with_suffix(".offsets")


def _lines(path: Path) -> Iterator[bytes]:
    with _readable(path).open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


def _append(path: Path, row: Mapping[str, Any]) -> None:
    """Adds a line that is on the disk when this returns."""
    with explained(path), path.open("ab") as file:
        file.write(_line(row))
        file.flush()
        os.fsync(file.fileno())


def _rewrite(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(b"".join(_line(each) for each in rows))


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _document(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False, indent=2).encode() + b"\n"


def _parsed(text: bytes, place: str) -> Row:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise InputError(f"{place} is not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"{place} holds a {type(row).__name__}; expected a JSON object")
    return row


def _readable(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"{path} is missing; give a file that a run wrote")
    return path
