"""What PyTorch says when a GPU has no memory left, in a few words; PyTorch itself is not imported for it."""

import re

ASKED = re.compile(
    r"Tried to allocate ([\d.]+ \w+)\..{0,400}?capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free", re.S
)
OTHERS = re.compile(r"Process \d+ has ([\d.]+) ([KMG])iB memory in use")
GIB = {"K": 2**-20, "M": 2**-10, "G": 1.0}


def exhausted(error: BaseException) -> str | None:
    """How much memory was asked for and how much there was, where that is what the error is about."""
    if type(error).__name__ != "OutOfMemoryError":
        return None
    told = "the GPU has no memory left"
    if found := ASKED.search(str(error)):
        asked, total, free = found.groups()
        told += f": {asked} were asked for, {free} of {total} are free"
        held = sum(float(amount) * GIB[unit] for amount, unit in OTHERS.findall(str(error)))
        told += f", and other processes hold {held:.1f} GiB" if held > 0 else ""
    return told
