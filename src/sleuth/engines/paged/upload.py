"""What the host tells the device for one step, as one array and one copy.

A copy to a GPU costs some microseconds whatever its size, and a step needs a dozen small arrays.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ALIGNED = 4  # numbers of 32 bits in 16 bytes


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Views of the arrays on the device, as int32 (float32 arrays bit by bit); nobody waits for the copy."""
    parts = [_bits(each) for each in arrays]
    # Each begins at a multiple of 16 bytes: kernels are compiled once more for pointers that do not.
    starts = np.cumsum([0, *(-(-len(part) // ALIGNED) * ALIGNED for part in parts)])
    # Pinned memory comes from torch's cache, which does not hand it out again before a copy from it is done.
    host = torch.empty(int(starts[-1]), dtype=torch.int32, pin_memory=device.type == "cuda")
    filled = host.numpy()
    for start, part in zip(starts.tolist(), parts, strict=False):
        filled[start : start + len(part)] = part
    there = host.to(device, non_blocking=True)
    return [there[start : start + len(part)] for start, part in zip(starts.tolist(), parts, strict=False)]


def _bits(array: np.ndarray) -> np.ndarray:
    flat = array.ravel()
    return flat.view(np.int32) if flat.dtype == np.float32 else flat.astype(np.int32, copy=False)
