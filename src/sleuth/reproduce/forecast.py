"""Disk space and time that a reproduction needs, before it begins."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PretrainedConfig

from sleuth.config.tree import Config
from sleuth.corpus.datasets.public import PARTIAL
from sleuth.errors import InputError
from sleuth.model.policy import select_device
from sleuth.page.document import duration
from sleuth.pipeline.stage import Stage
from sleuth.reproduce.stages import GB, TRAINING
from sleuth.train import accelerators
from sleuth.train.accelerators import GIB
from sleuth.train.footprint import ADAM, FP32, HALF
from sleuth.train.plan import Models, Plan, local_device, make_plan


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes that the remaining stages need on one file system, and what is free there."""

    folder: Path
    needed: int
    free: int

    def __str__(self) -> str:
        return f"{self.needed / GB:,.1f} GB needed at {self.folder}, {self.free / GB:,.1f} GB free"


def with_checkpoints(stages: Sequence[Stage], config: Config, parameters: int) -> list[Stage]:
    """Add the space of the checkpoints of a model with this many parameters to the training."""
    models = 2 if config.algorithm.advantage == "gae" else 1
    trained = 0 if config.model.lora.rank else FP32 + ADAM  # masters and moments
    kept = config.train.keep + config.train.keep_best + 2  # with that of step 0, and the one being written
    space = kept * models * (HALF + trained) * parameters
    return [replace(stage, space=space) if stage.name == TRAINING else stage for stage in stages]


def plan_disks(stages: Sequence[Stage]) -> list[Disk]:
    """Sum the space of the stages that are not done, less what an interrupted stage has written, by file system."""
    found: dict[int, tuple[Path, int]] = {}
    for stage in stages:
        if stage.space and not stage.is_done:
            folder = _existing(stage.outputs[0])
            needed = max(0, stage.space - sum(map(_written, stage.outputs)))
            device = folder.stat().st_dev
            first, before = found.get(device, (folder, 0))
            found[device] = (first, before + needed)
    return [Disk(folder, needed, shutil.disk_usage(folder).free) for folder, needed in found.values()]


def require_disk_space(stages: Sequence[Stage]) -> None:
    """Raise InputError if the outputs of the remaining stages do not fit on the disk."""
    for disk in plan_disks(stages):
        if disk.needed > disk.free:
            raise InputError(
                f"not enough disk space: {disk}; free some space, choose other folders with --out and SLEUTH_DATA, or "
                "keep fewer checkpoints (--set train.keep=1)"
            )


def _existing(path: Path) -> Path:
    return next(each for each in path.parents if each.is_dir())


def _written(output: Path) -> int:
    """Bytes of an unfinished download, an unfinished index, or the checkpoints of an unfinished run."""
    partial = output.with_name(output.name + PARTIAL)
    folders = [output.with_name(f".building-{output.name}"), output.parent / "checkpoints"]
    files = [partial, *(path for folder in folders if folder.is_dir() for path in folder.rglob("*"))]
    return sum(path.stat().st_size for path in files if path.is_file())


def plan_training(
    config: Config, shape_of: Callable[[str], PretrainedConfig], gpu: str | None, ranks: int
) -> tuple[Plan, Models]:
    """Predict memory and time of a training step, on a GPU by name or on this machine."""
    models = Models.of(config, shape_of)
    sheet, free = (accelerators.find(gpu), None) if gpu is not None else local_device(select_device())
    return make_plan(config, sheet, models, ranks=ranks, capacity=free), models


def describe_training(plan: Plan, steps: int) -> list[str]:
    """Describe time and memory of the training."""
    device, ranks = plan.setup.device, plan.setup.ranks
    seconds = plan.seconds.total * steps / ranks
    shared = f" on {ranks} of them, if they share the work evenly" if ranks > 1 else ""
    return [
        f"training     {steps:,} steps of about {plan.seconds.total / ranks:.3g} s on {device.label or device.name}: "
        f"{duration(seconds)}{shared}; evaluations not included",
        f"memory       {plan.footprint.needed / GIB:.1f} of {plan.capacity / GIB:.1f} GiB: {plan.verdict}"
        + (f"; it fits with {plan.options[0].line}" if plan.options else ""),
    ]


def describe_stages(stages: Sequence[Stage], lines: Sequence[str]) -> list[str]:
    """Add the space that each stage needs to the two lines per stage of the pipeline."""
    shown = []
    for stage, first, second in zip(stages, lines[::2], lines[1::2], strict=True):
        needs = f" [{stage.space / GB:,.0f} GB]" if stage.space >= GB and not stage.is_done else ""
        shown += [f"{first}{needs}", second]
    return shown
