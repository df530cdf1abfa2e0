"""Files read one after the other as one, unpacked on the way where they are compressed."""

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

from sleuth.corpus.bounded_lines import LONGEST, line_batches, too_long
from sleuth.corpus.progress import Progress
from sleuth.errors import InputError

BLOCK = 1 << 20
GZIP = b"\x1f\x8b"


class Pieces(RawIOBase):
    """Files end to end, as `cat` would give them; `done` bytes of `total` are read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.total = sum(path.stat().st_size for path in paths)
        self.done = 0
        self._left = list(reversed(paths))
        self._file: RawIOBase | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._file or self._left:
            if self._file is None:
                self._file = cast(RawIOBase, self._left.pop().open("rb", buffering=0))
            if count := self._file.readinto(buffer):
                self.done += count
                return count
            self._file.close()
            self._file = None
        return 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


def unpacked(paths: Sequence[Path], progress: Progress) -> Iterator[bytes]:
    """The content of one file, or of one that was cut into pieces, block by block; no line of it may be too long."""
    number, length = 1, 0
    with _reading(paths) as (pieces, file):
        while block := file.read(BLOCK):
            number += block.count(b"\n")
            last = block.rfind(b"\n")
            length = length + len(block) if last < 0 else len(block) - last - 1
            if length > LONGEST:
                raise too_long(paths[0], number)
            yield block
            progress("unpacking", pieces.done, pieces.total)


def unpacked_lines(path: Path, heard: Callable[[int], None]) -> Iterator[bytes]:
    """The lines of one file; `heard` is told now and then how much of it, as it lies on disk, is read."""
    with _reading([path]) as (pieces, file):
        for lines in line_batches(file, path, BLOCK):
            yield from lines
            heard(pieces.done)


@contextmanager
def _reading(paths: Sequence[Path]) -> Iterator[tuple[Pieces, BinaryIO]]:
    try:
        with Pieces(paths) as pieces, _opened(pieces, paths[0]) as file:
            yield pieces, file
    except (OSError, EOFError, zlib.error) as error:
        named = f"{paths[0]}" if len(paths) == 1 else f"{paths[0].parent} ({paths[0].name} to {paths[-1].name})"
        raise InputError(f"{named} cannot be read ({error}); get it again, with every piece") from error


def _opened(pieces: Pieces, first: Path) -> BinaryIO:
    """A .gz is what its name says; pieces of a file are compressed where they begin like it."""
    buffered = BufferedReader(pieces, BLOCK)
    if first.suffix.lower() == ".gz" or (first.suffix == "" and buffered.peek(2)[:2] == GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=buffered))
    return cast(BinaryIO, buffered)
