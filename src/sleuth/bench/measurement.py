"""Time, memory and utilisation of a device, and Markdown tables of results."""

import gc
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from sleuth.page.document import markdown_table
from sleuth.runs.checksums import code_version
from sleuth.train.metrics import GIB, Timer, peak_flops

FLOPS_PER_PARAMETER = 6  # per token: two in the forward pass, four in the backward pass

Log = Callable[[str], None]


def default_device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class SynchronizedTimer(Timer):
    """Timer that waits for the device at the end of each part, so that no work is counted in the next part."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        synchronize(self._device)
        with super().time(name):
            yield
            synchronize(self._device)


def mfu(size: int, tokens: int, seconds: float, device: torch.device) -> float | None:
    """Model FLOPs utilisation of forward and backward passes, without recomputation; None if the peak is unknown."""
    peak = peak_flops(device)
    return None if peak is None else FLOPS_PER_PARAMETER * size * tokens / seconds / peak


def release_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    """Peak memory of tensors since the last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[object]]

    def markdown(self) -> str:
        """The title and the table, with all columns but the first right-aligned."""
        lines = markdown_table(self.header, ([_format(cell) for cell in row] for row in self.rows))
        return "\n".join([f"**{self.title}**", "", *lines])


def _format(cell: object) -> str:
    if not isinstance(cell, float):
        return f"{cell:,}" if isinstance(cell, int) else str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def describe_machine() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    processor = model or platform.processor() or platform.machine()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    cores = len(os.sched_getaffinity(0))
    return f"sleuth {code_version()}, torch {torch.__version__}, {processor}, {cores} cores{gpu}"
