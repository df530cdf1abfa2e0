"""Data sheets of the devices that runs use: memory, arithmetic and bandwidth."""

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sleuth.errors import ConfigError
from sleuth.model.memory import host_memory

if TYPE_CHECKING:
    import torch

GIB = 1 << 30
CPU = "cpu"
# fp32 FLOP/s per core, and bytes per second, of the server CPUs on which the rates of step_time were measured.
CORE_FLOPS, CPU_BANDWIDTH = 80e9, 20e9


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device: bytes of memory that a process can use, dense FLOP/s in bf16 and fp32, bytes per second.

    `label` is part of the name that the driver reports. Without tensor cores for bf16, `bf16` is 0.
    """

    name: str
    label: str
    memory: int
    bf16: float
    fp32: float
    bandwidth: float

    @property
    def is_gpu(self) -> bool:
        return self.name != CPU

    def flops(self, half: bool) -> float:
        return self.bf16 if half and self.bf16 else self.fp32


def _gpu(name: str, label: str, gib: float, bf16: float, fp32: float, bandwidth: float) -> Accelerator:
    return Accelerator(name, label, int(gib * GIB), bf16 * 1e12, fp32 * 1e12, bandwidth * 1e12)


# Names for `sleuth plan --gpu`. TFLOP/s and TB/s from the vendor's data sheets, without sparsity; GiB as CUDA reports.
GPUS: dict[str, Accelerator] = {
    each.name: each
    for each in (
        _gpu("b200", "B200", 178.4, 2250, 80, 8.0),
        _gpu("h200", "H200", 139.8, 989, 67, 4.8),
        _gpu("h100", "H100", 79.1, 989, 67, 3.35),
        _gpu("h20", "H20", 95.1, 148, 44, 4.0),
        _gpu("a100-80", "A100", 79.1, 312, 19.5, 2.0),
        _gpu("a100-40", "A100", 39.4, 312, 19.5, 1.55),
        _gpu("l40s", "L40S", 44.4, 362, 91.6, 0.864),
        _gpu("a6000", "A6000", 47.4, 155, 38.7, 0.768),
        _gpu("a10", "A10", 22.0, 125, 31.2, 0.6),
        _gpu("5090", "5090", 31.4, 209, 105, 1.79),
        _gpu("4090", "4090", 23.5, 165, 82.6, 1.01),
        _gpu("3090", "3090", 23.6, 71, 35.6, 0.936),
        _gpu("v100", "V100", 31.7, 0, 15.7, 0.9),
        _gpu("t4", "T4", 14.6, 0, 8.1, 0.32),
    )
}


def find(name: str) -> Accelerator:
    """Return the data sheet of a GPU by its short name, or of this machine's CPU."""
    if name.lower() == CPU:
        return this_cpu()
    if name.lower() not in GPUS:
        raise ConfigError(f"unknown GPU {name!r}; expected one of {', '.join(GPUS)}, or cpu")
    return GPUS[name.lower()]


def this_cpu() -> Accelerator:
    total, _ = host_memory()
    cores = len(os.sched_getaffinity(0))
    return Accelerator(CPU, "", total, 0.0, cores * CORE_FLOPS, CPU_BANDWIDTH)


def identify(device: "torch.device") -> Accelerator | None:
    """Return the data sheet of a device of this machine, with the memory that it really has; None if unknown."""
    if device.type != "cuda":
        return this_cpu()
    import torch

    return match(torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory)


def match(label: str, memory: int) -> Accelerator | None:
    """Return the data sheet of a GPU by the name that the driver reports, with its real memory; None if unknown."""
    # The longest label first: an A100 is not an A10.
    known = sorted(GPUS.values(), key=lambda each: (-len(each.label), abs(each.memory - memory)))
    sheet = next((each for each in known if each.label in label), None)
    return None if sheet is None else replace(sheet, label=label, memory=memory)
