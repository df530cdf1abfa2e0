"""Files that are pieces of one, read as if they were one."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from sleuth.errors import InputError


class Joined:
    """The bytes of several files as if they were one."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        try:
            sizes = [file.stat().st_size for file in files]
        except OSError as error:
            raise InputError(
                f"the FAISS file {error.filename} cannot be read ({error.strerror}); put it back"
            ) from error
        self._starts = [0, *accumulate(sizes)]
        self.size = self._starts[-1]

    def __str__(self) -> str:
        first, *others = self.files
        return f"{first} and {len(others)} more" if others else str(first)

    def read(self, start: int, size: int) -> bytes:
        """So many bytes from `start` on; fewer are an InputError."""
        self.require(start + size, more=True)
        parts = []
        while size:
            number = bisect_right(self._starts, start) - 1
            part = self._piece(number, start, min(size, self._starts[number + 1] - start))
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return b"".join(parts)

    def require(self, size: int, more: bool = False) -> None:
        """The files have this size together, or `more`; else an InputError says so."""
        if self.size < size or (self.size > size and not more):
            raise InputError(
                f"the FAISS index {self} has {self.size:,} bytes, expected {'at least ' * more}{size:,} by what it "
                "holds; fetch it again, with every piece"
            )

    def _piece(self, number: int, start: int, size: int) -> bytes:
        path = self.files[number]
        try:
            with path.open("rb") as file:
                file.seek(start - self._starts[number])
                part = file.read(size)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}); put it back") from error
        if len(part) < size:
            raise InputError(f"{path} became shorter while it was read; fetch it again")
        return part
