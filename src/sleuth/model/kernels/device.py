"""How much of a device there is to share out."""

from functools import cache

import torch

EACH = 8  # programs a multiprocessor, of kernels whose programs take many rows


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def programs(rows: int, device: torch.device) -> int:
    """How many programs share the rows, so that each leaves one partial sum and there are few of them."""
    return min(rows, EACH * processors(device))
