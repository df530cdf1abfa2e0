"""Plain arrays on disk: .npy files, opened memory-mapped."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.errors import InputError


def open_array(path: Path, length: int | None = None) -> NDArray[Any]:
    """A one-dimensional array, read from disk where it is touched; one that is not whole is an InputError."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"the array {path} does not exist; build the index again") from None
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"the array {path} is damaged or cut short ({error}); build the index again") from error
    if mapped.ndim != 1 or length not in (None, len(mapped)):
        expected = "one dimension" if length is None else f"({length},)"
        raise InputError(f"the array {path} has shape {mapped.shape}, expected {expected}; build the index again")
    # A view without the memmap class, which makes every slice cost microseconds.
    return np.asarray(mapped)
