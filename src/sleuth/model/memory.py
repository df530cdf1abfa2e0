"""Memory of a device in bytes: how much there is, and how much of it can be had."""

import os
import re
from pathlib import Path

import torch

MEMORY = Path("/proc/meminfo")
CONTAINER = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def of_device(device: torch.device) -> tuple[int, int]:
    """Memory in all, and what is free."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total, free
    return of_host()


def of_host() -> tuple[int, int]:
    """The memory of the machine, or of the container it is, and how much of it can still be had."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = total
    if MEMORY.exists() and (line := re.search(r"MemAvailable:\s+(\d+) kB", MEMORY.read_text())):
        free = int(line[1]) << 10
    limits = [int(text) for path in CONTAINER if path.exists() and (text := path.read_text().strip()).isdecimal()]
    bound = min([total, *limits])
    return bound, min(bound, free)
