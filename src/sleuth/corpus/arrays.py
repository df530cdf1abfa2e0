"""One-dimensional .npy arrays on disk: memory-mapped for reading, or written piece by piece."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.errors import InputError


def open_array(path: Path, length: int | None = None) -> NDArray[Any]:
    """Memory-map a one-dimensional array; raise InputError if it is missing, damaged or of another length."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"the array {path} does not exist; build the index again") from None
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"the array {path} is damaged or truncated ({error}); build the index again") from error
    if mapped.ndim != 1 or length not in (None, len(mapped)):
        expected = "one dimension" if length is None else f"({length},)"
        raise InputError(f"the array {path} has shape {mapped.shape}, expected {expected}; build the index again")
    # A plain ndarray view: slicing a memmap costs microseconds more.
    return np.asarray(mapped)


def sample_positions(count: int, size: int) -> list[int]:
    """Return up to `size` positions spread evenly over an array, including the first and the last."""
    return sorted({int(place) for place in np.linspace(0, count - 1, min(size, count)).round()})


class GrowingArray:
    """A one-dimensional .npy file of little-endian uint64 that is written piece by piece."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._length = 0

    def __enter__(self) -> "GrowingArray":
        self._write_header()
        return self

    def __exit__(self, *raised: object) -> None:
        with self._file:
            # numpy pads the header so that the length can grow in place.
            self._file.seek(0)
            self._write_header()

    def extend(self, values: NDArray[np.uint64]) -> None:
        self._file.write(values.astype("<u8", copy=False).tobytes())
        self._length += len(values)

    def _write_header(self) -> None:
        header = {"descr": "<u8", "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)
