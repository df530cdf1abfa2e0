"""What is found, judged: a row for each thing, with the remedy where there is something to mend."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sleuth.doctor.machine import Gpu, Kernels, Machine

# As pyproject.toml has them: from the first version on, up to but without the second.
SUPPORTED = {"Python": ("3.11", None), "torch": ("2.11", "2.14"), "transformers": ("5.17", "6")}
GIB = 1 << 30
CAPABILITY = (8, 0)  # from which GPUs compute in bf16
BROKEN = {
    Kernels.FAILED: "Triton needs a C compiler, Python's headers and a cache folder it can write: mend what it says",
    Kernels.WRONG: "install the Triton that came with this torch: pip install --force-reinstall torch",
}


class Verdict(StrEnum):
    """How a thing is."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of a check; the remedy is empty where all is well."""

    what: str
    found: str
    verdict: Verdict = Verdict.OK
    remedy: str = ""


def findings(machine: Machine) -> list[Finding]:
    """Every row about a machine."""
    return [
        _version("Python", machine.python),
        Finding("platform", machine.platform),
        _version("torch", machine.torch),
        _version("transformers", machine.transformers),
        _cuda(machine),
        *_gpus(machine.gpus),
        _triton(machine),
        Finding("cores", str(machine.cores)),
        _memory(machine),
        _disk(machine),
        Finding("bf16 on the CPU", "not tried: it ends the process on some processors; the CPU computes in fp32"),
        _optional(machine),
    ]


def _version(name: str, found: str) -> Finding:
    first, beyond = SUPPORTED[name]
    wanted = f"{first} or newer" if beyond is None else f"{first} or newer, below {beyond}"
    if _parts(found) < _parts(first) or (beyond is not None and _parts(found) >= _parts(beyond)):
        remedy = "name a newer one" if name == "Python" else f"pip install '{name}>={first},<{beyond}'"
        return Finding(name, found, Verdict.BAD, f"{wanted} is supported: {remedy}")
    return Finding(name, found)


def _parts(version: str) -> tuple[int, ...]:
    """The numbers a version begins with."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _cuda(machine: Machine) -> Finding:
    """Whether torch, driver and GPUs go together; a machine without any of them is as sound as one with all."""
    build = f"torch for CUDA {machine.cuda_build}" if machine.cuda_build else "torch without CUDA"
    found = f"{build}, {f'driver {machine.driver}' if machine.driver else 'no driver'}"
    match (machine.cuda_build, machine.driver, bool(machine.gpus)):
        case (str(), _, True) | (None, None, _):
            return Finding("CUDA", found)
        case (None, _, _):
            return Finding("CUDA", found, Verdict.WARN, "the GPU stays idle: install a build of torch for CUDA")
        case (_, None, _):
            return Finding("CUDA", found, Verdict.WARN, "no GPU is seen, so all runs on the CPU: install the driver")
    remedy = (
        f"torch sees no GPU: update the driver to one for CUDA {machine.cuda_build}, or look at CUDA_VISIBLE_DEVICES"
    )
    return Finding("CUDA", found, Verdict.BAD, remedy)


def _gpus(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    for number, gpu in enumerate(gpus):
        what, capability = f"GPU {number}", ".".join(map(str, gpu.capability))
        found = f"{gpu.name}, compute capability {capability}, {_gib(gpu.free)} of {_gib(gpu.memory)} GiB free"
        if gpu.capability < CAPABILITY:
            remedy = "bf16 needs a compute capability of 8.0 or more: use a newer GPU"
            yield Finding(what, found, Verdict.WARN, remedy)
        elif gpu.free < gpu.memory / 2:
            yield Finding(what, found, Verdict.WARN, "more than half is taken: end what else runs there")
        else:
            yield Finding(what, found)


def _triton(machine: Machine) -> Finding:
    fault = f" ({machine.kernel_fault})" if machine.kernel_fault else ""
    found = f"{machine.triton or ''} {machine.kernels}{fault}".strip()
    match machine.kernels:
        case Kernels.FAILED | Kernels.WRONG:
            return Finding("Triton", found, Verdict.BAD, BROKEN[machine.kernels])
        case Kernels.ABSENT if machine.gpus:
            return Finding("Triton", found, Verdict.BAD, "the engine needs it on a GPU: pip install triton")
        case Kernels.INTERPRETED if machine.gpus:
            return Finding("Triton", found, Verdict.WARN, "kernels crawl: unset TRITON_INTERPRET")
    return Finding("Triton", found)


def _memory(machine: Machine) -> Finding:
    found = f"{_gib(machine.memory_free)} of {_gib(machine.memory)} GiB free"
    if machine.memory_free < 2 * GIB:
        return Finding("memory", found, Verdict.WARN, "a run may be killed for it: end what else runs here")
    return Finding("memory", found)


def _disk(machine: Machine) -> Finding:
    found = f"{_gib(machine.disk_free)} GiB free under {machine.disk}"
    if machine.disk_free < GIB:
        return Finding("disk", found, Verdict.BAD, "a run needs 1 GiB or more: free some space, or work elsewhere")
    if machine.disk_free < 10 * GIB:
        remedy = "a checkpoint takes three times the weights in fp32: enough for small models only"
        return Finding("disk", found, Verdict.WARN, remedy)
    return Finding("disk", found)


def _optional(machine: Machine) -> Finding:
    there = [f"{name} {version}" for name, version in machine.optional.items() if version is not None]
    absent = [name for name, version in machine.optional.items() if version is None]
    parts = (", ".join(there), f"not installed: {', '.join(absent)}" if absent else "")
    return Finding("optional libraries", "; ".join(filter(None, parts)))


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f}"
