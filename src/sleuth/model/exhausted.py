"""What a process that has no memory left says, in a few words; PyTorch itself is not imported for it."""

import errno
import re

ASKED = re.compile(
    r"Tried to allocate ([\d.]+ \w+)\..{0,400}?capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free", re.S
)
OTHERS = re.compile(r"Process \d+ has ([\d.]+) ([KMG])iB memory in use")
GIB = {"K": 2**-20, "M": 2**-10, "G": 1.0}
# PyTorch's allocator on the CPU, the C++ library's, the system's.
ON_CPU = re.compile(r"DefaultCPUAllocator|bad_alloc|Cannot allocate memory")
BYTES = re.compile(r"tried to allocate (\d+) bytes")
ARRAY = re.compile(r"Unable to allocate ([\d.]+ \w+)")


def exhausted(error: BaseException) -> str | None:
    """How much memory was asked for and how much there was, where that is what the error is about."""
    if type(error).__name__ == "OutOfMemoryError":
        return _on_gpu(str(error))
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return _on_cpu(str(error))
    return _on_cpu(str(error)) if isinstance(error, RuntimeError) and ON_CPU.search(str(error)) else None


def _on_gpu(message: str) -> str:
    told = "the GPU has no memory left"
    if found := ASKED.search(message):
        asked, total, free = found.groups()
        told += f": {asked} were asked for, {free} of {total} are free"
        held = sum(float(amount) * GIB[unit] for amount, unit in OTHERS.findall(message))
        told += f", and other processes hold {held:.1f} GiB" if held > 0 else ""
    return told


def _on_cpu(message: str) -> str:
    told = "the machine has no memory left"
    if found := BYTES.search(message):
        return f"{told}: {int(found[1]) / 2**30:.2f} GiB more were asked for"
    if found := ARRAY.search(message):
        return f"{told}: {found[1]} more were asked for"
    return told
