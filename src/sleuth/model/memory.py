"""Device and host memory in bytes, and readable messages for out-of-memory errors; torch is not imported here."""

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MEMINFO = Path("/proc/meminfo")
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

_GPU = re.compile(
    r"Tried to allocate ([\d.]+ \w+)\..{0,400}?capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free", re.S
)
_OTHER_PROCESSES = re.compile(r"Process \d+ has ([\d.]+) ([KMG])iB memory in use")
_GIB = {"K": 2**-20, "M": 2**-10, "G": 1.0}
# PyTorch's CPU allocator, the C++ library, the operating system.
_CPU = re.compile(r"DefaultCPUAllocator|bad_alloc|Cannot allocate memory")
_CPU_BYTES = re.compile(r"tried to allocate (\d+) bytes")
_NUMPY_SIZE = re.compile(r"Unable to allocate ([\d.]+ \w+)")


def device_memory(device: "torch.device") -> tuple[int, int]:
    """Total and free memory of a device."""
    if device.type == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(device)
        return total, free
    return host_memory()


def host_memory() -> tuple[int, int]:
    """Total and available memory of the machine, within the limits of its container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = total
    if MEMINFO.exists() and (line := re.search(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text())):
        free = int(line[1]) << 10
    limits = [int(text) for path in CGROUP_LIMITS if path.exists() and (text := path.read_text().strip()).isdecimal()]
    bound = min([total, *limits])
    return bound, min(bound, free)


def describe_out_of_memory(error: BaseException) -> str | None:
    """Describe an out-of-memory error in one line; None for any other error."""
    message = str(error)
    if type(error).__name__ == "OutOfMemoryError":
        if not (found := _GPU.search(message)):
            return "the GPU is out of memory"
        requested, total, free = found.groups()
        held = sum(float(amount) * _GIB[unit] for amount, unit in _OTHER_PROCESSES.findall(message))
        others = f"; other processes hold {held:.1f} GiB" if held > 0 else ""
        return f"the GPU is out of memory: {requested} requested, {free} of {total} free{others}"
    exhausted = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if not exhausted and not (isinstance(error, RuntimeError) and _CPU.search(message)):
        return None
    if found := _CPU_BYTES.search(message):
        return f"the machine is out of memory: {int(found[1]) / 2**30:.2f} GiB requested"
    if found := _NUMPY_SIZE.search(message):
        return f"the machine is out of memory: {found[1]} requested"
    return "the machine is out of memory"
