"""The most memory a run has held."""

import resource
import sys

import torch

GIB = 1 << 30


def peak_memory_gib() -> float:
    """Of this process, on the host."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (GIB if sys.platform == "darwin" else 1 << 20)


def peak_gib() -> dict[str, float]:
    """On the host and, where there is one, on the GPU, as metrics."""
    found = {"memory/host_gib": peak_memory_gib()}
    if torch.cuda.is_available():
        found["memory/gpu_gib"] = torch.cuda.max_memory_allocated() / GIB
    return found
