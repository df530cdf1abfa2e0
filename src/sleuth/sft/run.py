"""Supervised fine-tuning from files: train a model on traces, and write a model folder with sft.json."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from sleuth.config.recipe import resolve_policy
from sleuth.errors import ConfigError, TrainingStopped, UserError
from sleuth.model.policy import Policy
from sleuth.retrieval.staging import staged_folder
from sleuth.runs.atomic import require_new
from sleuth.runs.checksums import code_version, fingerprint, folder_stamp
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.json_files import read_json
from sleuth.sft.loop import CHECKPOINTS, Checkpoints, History, split_held_out, train
from sleuth.sft.settings import SFTConfig
from sleuth.sft.traces import read_traces
from sleuth.train.observer import RunObserver

RECORD = "sft.json"


@dataclass(frozen=True, slots=True)
class SFTResult:
    """Training history, and the numbers of training and held-out traces."""

    history: History
    trained: int
    held_out: int


def run(model: str, files: Sequence[Path], out: Path, settings: SFTConfig, observer: RunObserver) -> SFTResult:
    """Train the model on the traces; `out` is created only when it is complete.

    An interrupted run is kept; calling `run` with the same model, traces and settings resumes it.
    """
    require_new(out)
    source = resolve_policy(model)
    settings = limit_row_tokens(settings, source)
    found = read_traces(source, files, settings, observer)
    observer.log(found.summary())
    rows, held_out = split_held_out(found.traces, settings.held_out, settings.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    fingerprints = [fingerprint(path) for path in files]
    identity = {
        "model": folder_stamp(source),
        "traces": fingerprints,
        "settings": settings.model_dump(mode="json", exclude={"save_minutes"}),
    }
    # Created before training, so that a folder that is not writable fails now, not hours later.
    staged = staged_folder(out, identity, keep_on_error=True)
    with INTERRUPTION.defer(), staged as folder, _remove_if_not_resumable(folder):
        checkpoints = Checkpoints(folder, settings.save_minutes)
        policy = Policy.load(source, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
        history = train(policy, rows, held_out, settings, observer, checkpoints)
        policy.save(folder)
        record = {
            "model": model,
            "code": code_version(),
            "settings": settings.model_dump(mode="json"),
            "traces": [{"path": str(path), "sha256": sha} for path, sha in zip(files, fingerprints, strict=True)],
            "rows": len(found.traces),
            "left_out": dict(found.skipped),
            "cut": dict(found.truncated),
            **history.as_json(),
        }
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        checkpoints.remove()
    return SFTResult(history, len(rows), len(held_out))


@contextmanager
def _remove_if_not_resumable(folder: Path) -> Iterator[None]:
    """Remove the folder of a training run that diverged, or that failed before its first checkpoint."""
    try:
        yield
    except (TrainingStopped, UserError) as error:
        if isinstance(error, TrainingStopped) or not (folder / CHECKPOINTS).exists():
            shutil.rmtree(folder)
        raise


def limit_row_tokens(settings: SFTConfig, model: Path) -> SFTConfig:
    """Cap the default `row_tokens` at the model's positions; raises ConfigError if an explicit value exceeds them."""
    positions = read_json(model / "config.json").get("max_position_embeddings")
    if not isinstance(positions, int) or settings.row_tokens <= positions:
        return settings
    if "row_tokens" in settings.model_fields_set:
        raise ConfigError(
            f"--row-tokens {settings.row_tokens} is more than the {positions} positions of the model; lower it"
        )
    return settings.model_copy(update={"row_tokens": positions})
