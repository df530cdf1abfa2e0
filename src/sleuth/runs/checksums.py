"""Checksums: SHA-256 of the files of a folder, in a manifest that also holds the hash of itself."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sleuth.errors import InputError
from sleuth.runs.documents import Row, document, parsed

SEAL = "seal"


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of files by their paths in a folder; several files are read at once."""
    wanted = list(names)
    # hashlib lets other threads run meanwhile.
    with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as pool:
        return dict(zip(wanted, pool.map(lambda name: digest(folder / name), wanted), strict=True))


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files(folder: Path) -> list[str]:
    """The paths of all files in a folder, as seen from it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def sealed(content: Mapping[str, Any]) -> bytes:
    """A JSON document that holds, as its last entry, the hash of all its other bytes."""
    blank = document({**content, SEAL: ""})
    return document({**content, SEAL: hashlib.sha256(blank).hexdigest()})


def unsealed(path: Path, written: bytes) -> Row:
    """The content of a document that `sealed` made, without its seal; one that was changed is an InputError."""
    content = parsed(written, str(path))
    seal = str(content.pop(SEAL, ""))
    if not seal or hashlib.sha256(written.replace(seal.encode(), b"")).hexdigest() != seal:
        raise InputError(f"{path} is damaged: its contents do not match its seal; put back what was written")
    return content
