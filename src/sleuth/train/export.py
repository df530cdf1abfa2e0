"""Export a checkpoint without the trainer's state: as a plain Hugging Face model folder, or for Megatron."""

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sleuth.errors import ConfigError, InputError
from sleuth.model import megatron
from sleuth.model.lora import FOLDER as ADAPTER
from sleuth.model.shapes import shape_of_folder
from sleuth.runs.atomic import atomic_write, require_new
from sleuth.runs.checksums import TRAINER, verify_checkpoint
from sleuth.runs.json_files import read_json
from sleuth.runs.run import BEST, Run
from sleuth.train.checkpoint import PROGRESS

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INDEX = "model.safetensors.index.json"


def find_checkpoint(path: Path, step: int | None, best: bool) -> Path:
    """Return a run's checkpoint (the newest by default), or `path` itself if it is a checkpoint."""
    if step is not None and best:
        raise ConfigError("--step and --best select different checkpoints; leave one of them out")
    if (path / TRAINER).is_dir():
        if step is not None or best:
            raise ConfigError(f"{path} is a single checkpoint, so --step and --best have no effect; leave them out")
        return path
    run = Run.open(path)
    if step is not None:
        if not run.checkpoint(step).is_dir():
            steps = ", ".join(each.name.removeprefix("step-") for each in run.checkpoints()) or "none"
            raise InputError(f"{run.path} has no checkpoint of step {step}; it has: {steps}")
        return run.checkpoint(step)
    chosen = run.best() if best else run.latest()
    if chosen is None and best:
        raise InputError(
            f"{path} has no checkpoint with a held-out score; leave --best out to export the newest, "
            "or train with train.keep_best and evaluate.every"
        )
    if chosen is None:
        raise InputError(f"{path} has no checkpoint yet; continue it with: sleuth train --resume {path}")
    return chosen


def describe_source(path: Path, best: bool) -> list[str]:
    """Return remarks about the run checkpoint to export, one sentence each; empty if `path` is a checkpoint."""
    if (path / TRAINER).is_dir():
        return []
    run, remarks = Run.open(path), []
    if best:
        chosen = read_json(run.path / BEST)
        remarks.append(f"step {chosen['step']} has the best held-out score, {chosen['score']:.3f}")
        if chosen["step"] == 0:
            remarks.append("this is the initial policy: no later step scored higher")
    if run.summary() is None:
        remarks.append(f"the run is not finished; continue it with: sleuth train --resume {path}")
    return remarks


def export(checkpoint: Path, out: Path, dtype: str | None) -> None:
    """Export a checkpoint to the folder `out` atomically; cast the weights to `dtype` if given."""
    _check(checkpoint, out, dtype)
    with atomic_write(out) as folder:
        shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns(TRAINER, ADAPTER, "*.safetensors"))
        size = sum(_copy_weights(file, folder / file.name, dtype) for file in sorted(checkpoint.glob("*.safetensors")))
        if dtype is not None:
            _update_metadata(folder, dtype, size)


def export_megatron(checkpoint: Path, out: Path, dtype: str | None) -> None:
    """Export a checkpoint to the folder `out` in Megatron's format torch_dist, under the step as its iteration."""
    _check(checkpoint, out, dtype)
    step: int = read_json(checkpoint / TRAINER / PROGRESS)["step"]
    with ExitStack() as stack:
        files = [stack.enter_context(_open_weights(path)) for path in sorted(checkpoint.glob("*.safetensors"))]
        homes = {name: file for file in files for name in file.keys()}  # noqa: SIM118 - not a mapping

        def weight(name: str) -> Tensor:
            if name not in homes:
                raise InputError(f"{checkpoint} lacks the weight {name}; export another checkpoint")
            tensor: Tensor = homes[name].get_tensor(name)
            return tensor if dtype is None else tensor.to(DTYPES[dtype])

        megatron.export_checkpoint(shape_of_folder(checkpoint), weight, out, step)


def _check(checkpoint: Path, out: Path, dtype: str | None) -> None:
    require_new(out)
    if checkpoint.absolute() in out.absolute().parents:
        raise InputError(f"{out} is inside the checkpoint {checkpoint}; choose a folder outside it")
    if not any(checkpoint.glob("*.safetensors")):
        raise InputError(f"{checkpoint} has no weights (*.safetensors); export another checkpoint")
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype} is unknown; choose one of {', '.join(DTYPES)}")
    verify_checkpoint(checkpoint)


def _open_weights(source: Path) -> Any:
    try:
        return safe_open(source, framework="pt")
    except SafetensorError as error:
        raise InputError(f"{source} cannot be read ({error}); export another checkpoint") from error


def _copy_weights(source: Path, target: Path, dtype: str | None) -> int:
    """Copy one weights file, cast to `dtype` if given; return the size of its tensors in bytes."""
    try:
        with _open_weights(source) as file:
            metadata = file.metadata()
        weights: dict[str, Tensor] = load_file(source)
    except SafetensorError as error:
        raise InputError(f"{source} cannot be read ({error}); export another checkpoint") from error
    if dtype is not None:
        wanted = DTYPES[dtype]
        weights = {name: each.to(wanted) if each.is_floating_point() else each for name, each in weights.items()}
    save_file(weights, target, metadata=metadata)
    return sum(weight.nbytes for weight in weights.values())


def _update_metadata(folder: Path, dtype: str, size: int) -> None:
    """Write the new dtype and size into config.json and the weights index."""
    settings = read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps({**settings, "dtype": dtype}, indent=2) + "\n", encoding="utf-8")
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX)
        index["metadata"] = {**index.get("metadata", {}), "total_size": size}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
