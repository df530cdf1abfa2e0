"""What the host tells the device for one step, as one array and one copy.

A copy to a GPU costs some microseconds whatever its size, and a step needs a dozen small arrays.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Views of the arrays on the device, as int32 (float32 arrays bit by bit); nobody waits for the copy."""
    parts = [_bits(each) for each in arrays]
    lengths = [len(part) for part in parts]
    # Pinned memory comes from torch's cache, which does not hand it out again before a copy from it is done.
    host = torch.empty(sum(lengths), dtype=torch.int32, pin_memory=device.type == "cuda")
    np.concatenate(parts, out=host.numpy())
    return list(host.to(device, non_blocking=True).split(lengths))


def _bits(array: np.ndarray) -> np.ndarray:
    flat = array.ravel()
    return flat.view(np.int32) if flat.dtype == np.float32 else flat.astype(np.int32, copy=False)
