"""What is measured on a device: seconds in which it has done all its work, operations against its peak, memory."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sleuth.train.metrics import GIB, Timer, peak_flops

PASSES = 6  # operations a parameter and token: two forwards, four backwards


def here() -> torch.device:
    """The first GPU, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def settle(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class SynchronizedTimer(Timer):
    """A part ends when the device has done its work, so that none of it is counted in the next one."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        settle(self._device)
        with super().time(name):
            yield
            settle(self._device)


def mfu(size: int, tokens: int, seconds: float, device: torch.device) -> float | None:
    """The share of the device's peak that forward and backward passes come to, 6 operations a parameter and token.

    What is computed again is not counted; None where the peak is not known.
    """
    peak = peak_flops(device)
    return None if peak is None else PASSES * size * tokens / seconds / peak


def release(device: torch.device) -> None:
    """Gives back the memory that nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def forget_peak(device: torch.device) -> None:
    """Counts the peak of memory from here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    """The most memory that tensors took since then; None on a CPU, where nobody counts it."""
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else None
