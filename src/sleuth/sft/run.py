"""A supervised cold start from files to folder: a model and traces in, a model folder with its record out."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sleuth.config.recipe import resolve_policy
from sleuth.errors import ConfigError, TrainingStopped, UserError
from sleuth.model.policy import Policy
from sleuth.retrieval.staging import staged_folder
from sleuth.runs.atomic import require_new
from sleuth.runs.checksums import code_version, fingerprint, folder_stamp
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.json_files import read_json
from sleuth.sft.checkpoint import CHECKPOINTS, Checkpoints
from sleuth.sft.loop import Course, apart, train
from sleuth.sft.settings import SFTConfig
from sleuth.sft.trace_reader import read
from sleuth.sft.traces import Reading
from sleuth.train.observer import RunObserver

RECORD = "sft.json"


@dataclass(frozen=True, slots=True)
class Schooled:
    """How a cold start went."""

    course: Course
    learned: int
    held_out: int


def run(model: str, files: Sequence[Path], out: Path, settings: SFTConfig, observer: RunObserver) -> Schooled:
    """Trains the model on the traces; the folder appears when it is whole.

    What was interrupted is kept beside it, and continued by the same model, traces and settings.
    """
    require_new(out)
    source = resolve_policy(model)
    settings = fitting(settings, _positions(source))
    reading = read(source, files, settings, observer)
    observer.log(reading.sentence())
    rows, held_out = apart(reading.traces, settings.held_out, settings.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Hours before it is filled: a place that cannot be written to is found now.
    unfinished = staged_folder(out, _order(source, files, settings), keep_on_error=True)
    with INTERRUPTION.defer(), unfinished as folder, _removed_if_useless(folder):
        checkpoints = Checkpoints(folder, settings.save_minutes)
        policy = Policy.load(source, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
        course = train(policy, rows, held_out, settings, observer, checkpoints)
        policy.save(folder)
        record = {"model": model, **_record(files, reading, settings), **course.as_json()}
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        checkpoints.remove()
    return Schooled(course, len(rows), len(held_out))


def _order(source: Path, files: Sequence[Path], settings: SFTConfig) -> dict[str, Any]:
    """Whatever decides the result: interrupted training is continued only by the same."""
    return {
        "model": folder_stamp(source),
        "traces": [fingerprint(path) for path in files],
        "settings": settings.model_dump(mode="json", exclude={"save_minutes"}),
    }


@contextmanager
def _removed_if_useless(folder: Path) -> Iterator[None]:
    """Removes a training that diverged, as it would again, and one that failed before its first checkpoint."""
    try:
        yield
    except TrainingStopped:
        shutil.rmtree(folder)
        raise
    except UserError:
        if not (folder / CHECKPOINTS).exists():
            shutil.rmtree(folder)
        raise


def fitting(settings: SFTConfig, positions: int | None) -> SFTConfig:
    """The settings for a model of so many positions: a limit that was asked for must fit, the default gives way."""
    if positions is None or settings.row_tokens <= positions:
        return settings
    if "row_tokens" in settings.model_fields_set:
        raise ConfigError(
            f"--row-tokens {settings.row_tokens} is more than the {positions} positions of the model; lower it"
        )
    return settings.model_copy(update={"row_tokens": positions})


def _positions(source: Path) -> int | None:
    positions = read_json(source / "config.json").get("max_position_embeddings")
    return positions if isinstance(positions, int) else None


def _record(files: Sequence[Path], reading: Reading, settings: SFTConfig) -> dict[str, Any]:
    return {
        "code": code_version(),
        "settings": settings.model_dump(mode="json"),
        "traces": [{"path": str(path), "sha256": fingerprint(path)} for path in files],
        "rows": len(reading.traces),
        "left_out": dict(reading.left_out),
        "cut": dict(reading.cut),
    }
