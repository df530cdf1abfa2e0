"""Lines of bounded length: a small compressed file can hold one line that would fill the memory."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TextIO

from sleuth.errors import InputError

LONGEST = 32 * 2**20  # bytes, or characters of a text file


def line_batches(file: BinaryIO, called: Path, size: int = 1 << 20) -> Iterator[list[bytes]]:
    """The lines of a file, `size` bytes of them at a time and the rest of the last one; a longer line is refused."""
    number = 1
    while block := file.read(size):
        if not block.endswith(b"\n"):
            block += file.readline(LONGEST + 1)
        lines = BytesIO(block).readlines()
        for place, line in enumerate(lines):
            if len(line) > LONGEST:
                raise too_long(called, number + place)
        number += len(lines)
        yield lines


def text_lines(file: TextIO, called: Path) -> Iterator[str]:
    """The lines of a text file; one of more than 32 Mi characters is refused."""
    number = 1
    while line := file.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise too_long(called, number)
        yield line
        number += 1


def too_long(called: Path, number: int) -> InputError:
    """What is said of a line that is too long."""
    return InputError(
        f"{called}, line {number} is longer than the {LONGEST >> 20} MiB that are read; cut it into several"
    )
