"""A checkpoint as a model folder for others: weights, settings and tokenizer, nothing of the trainer."""

import json
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sleuth.errors import ConfigError, InputError
from sleuth.model.lora import FOLDER as ADAPTER
from sleuth.runs import checksums
from sleuth.runs.atomic import atomic_write, require_new
from sleuth.runs.checksums import TRAINER
from sleuth.runs.json_files import read_json
from sleuth.runs.run import BEST, Run

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INDEX = "model.safetensors.index.json"


def found(path: Path, step: int | None, best: bool) -> Path:
    """The checkpoint meant by a run folder, its newest unless told, or by the folder of a checkpoint itself."""
    if step is not None and best:
        raise ConfigError("--step and --best name two checkpoints; leave one of them out")
    if (path / TRAINER).is_dir():
        if step is not None or best:
            raise ConfigError(f"{path} is one checkpoint, so --step and --best choose nothing; leave them out")
        return path
    run = Run.open(path)
    if step is not None:
        return _of_step(run, step)
    chosen = run.best() if best else run.latest()
    if chosen is None and best:
        raise InputError(
            f"{path} has no checkpoint with a held-out score; leave --best out to take its newest, "
            "or train with train.keep_best and evaluate.every"
        )
    if chosen is None:
        raise InputError(f"{path} has no checkpoint yet; continue it with: sleuth train --resume {path}")
    return chosen


def remarks(path: Path, best: bool) -> list[str]:
    """What there is to know of a checkpoint that was taken from a run: a sentence each."""
    if (path / TRAINER).is_dir():
        return []
    run, said = Run.open(path), []
    if best:
        chosen = read_json(run.path / BEST)
        said.append(f"step {chosen['step']} was the best by its held-out score, {chosen['score']:.3f}")
        if chosen["step"] == 0:
            said.append("that is the policy the run began with: no later one did better")
    if run.summary() is None:
        said.append(f"the run is not finished; continue it with: sleuth train --resume {path}")
    return said


def _of_step(run: Run, step: int) -> Path:
    if not run.checkpoint(step).is_dir():
        there = ", ".join(each.name.removeprefix("step-") for each in run.checkpoints()) or "none"
        raise InputError(f"{run.path} has no checkpoint of step {step}; those it has: {there}")
    return run.checkpoint(step)


def export(checkpoint: Path, out: Path, dtype: str | None) -> None:
    """Writes the folder whole or not at all; weights are rounded to `dtype` where one is given."""
    require_new(out)
    if checkpoint.absolute() in out.absolute().parents:
        raise InputError(f"{out} is inside the checkpoint {checkpoint}, which stays as it is; choose a folder outside")
    if not any(checkpoint.glob("*.safetensors")):
        raise InputError(f"{checkpoint} holds no weights (*.safetensors); export another checkpoint")
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype} is not known; choose among {', '.join(DTYPES)}")
    checksums.verify_checkpoint(checkpoint)
    with atomic_write(out) as folder:
        shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns(TRAINER, ADAPTER, "*.safetensors"))
        size = sum(_copy_weights(file, folder / file.name, dtype) for file in sorted(checkpoint.glob("*.safetensors")))
        if dtype is not None:
            _retype(folder, dtype, size)


def _copy_weights(source: Path, target: Path, dtype: str | None) -> int:
    """Copies one file of weights, each rounded where that is asked; returns how many bytes they take."""
    try:
        with safe_open(source, framework="pt") as file:
            metadata = file.metadata()
        weights: dict[str, Tensor] = load_file(source)
    except SafetensorError as error:
        raise InputError(f"{source} cannot be read ({error}); export another checkpoint") from error
    if dtype is not None:
        weights = {name: _cast(weight, DTYPES[dtype]) for name, weight in weights.items()}
    save_file(weights, target, metadata=metadata)
    return sum(weight.nbytes for weight in weights.values())


def _cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype) if weight.is_floating_point() else weight


def _retype(folder: Path, dtype: str, size: int) -> None:
    """Corrects what the files beside the weights say about them."""
    settings = read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps({**settings, "dtype": dtype}, indent=2) + "\n", encoding="utf-8")
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX)
        index["metadata"] = {**index.get("metadata", {}), "total_size": size}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
