"""Exclusive file locks between processes, released by the operating system when a process ends, even if killed."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sleuth.errors import InputError


def acquire(file: IO[bytes] | int, busy: str) -> None:
    """Lock an open file until it is closed; raise InputError(busy) if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(busy) from error


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock file `path`; raise InputError if another process holds the lock or the file cannot be written."""
    try:
        file = path.open("wb")
    except OSError as error:
        raise InputError(f"{path.parent} cannot be written ({error.strerror}); make it writable, or copy it") from error
    with file:
        acquire(file, busy)
        yield
