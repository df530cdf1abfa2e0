"""File access of the viewer: every file is opened here, and none outside the folders given on the command line."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sleuth.errors import InputError
from sleuth.http.responses import HttpProblem

MANIFEST = "manifest.json"
MAX_DEPTH = 4  # folders between a root and a run
MAX_DOCUMENT = 32 << 20  # bytes
MAX_MANIFEST = 1 << 20  # bytes; manifests are read for every list


@dataclass(frozen=True, slots=True)
class Root:
    """A folder given by the user, with a unique name; `path` is resolved."""

    name: str
    path: Path

    def folders(self) -> Iterator[tuple[str, Path]]:
        """Yield the id and path of each folder with a manifest, at any depth; nested ones are not searched."""
        yield from self._find(self.path, self.name, MAX_DEPTH)

    def contains(self, path: Path) -> bool:
        """Whether a path is inside the root after resolving all links."""
        return path.resolve().is_relative_to(self.path)

    def _find(self, folder: Path, name: str, depth: int) -> Iterator[tuple[str, Path]]:
        """Links are not searched; one that leaves the root is yielded, so that it can be reported."""
        link = folder.is_symlink()
        if (link and not self.contains(folder)) or (folder / MANIFEST).exists():
            yield name, folder
        elif depth and not link:
            for inner in _subfolders(folder):
                yield from self._find(inner, f"{name}/{inner.name}", depth - 1)


@dataclass(frozen=True, slots=True)
class ViewedFolder:
    """A run or evaluation inside a root; file names come from the program, never from a client."""

    id: str
    path: Path
    root: Root

    def find(self, name: str) -> Path | None:
        """Path of a regular file; None if missing or a link that leaves the root."""
        path = self.path / name
        return path if path.is_file() and self.root.contains(path) else None

    def open(self, name: str) -> BinaryIO:
        path = self.find(name)
        if path is None:
            raise HttpProblem(404, f"{self.id} has no file {name}")
        return path.open("rb")

    def read(self, name: str) -> bytes | None:
        """Contents of a small file; None if missing."""
        path = self.find(name)
        if path is None:
            return None
        limit, size = MAX_MANIFEST if name == MANIFEST else MAX_DOCUMENT, path.stat().st_size
        if size > limit:
            raise HttpProblem(503, f"{name} of {self.id} has {size:,} bytes; the limit is {limit:,}")
        return path.read_bytes()

    def entries(self, subfolder: str) -> list[os.DirEntry[str]]:
        """Entries of a subfolder; empty if it is missing or leaves the root."""
        folder = self.path / subfolder
        if not folder.is_dir() or not self.root.contains(folder):
            return []
        with os.scandir(folder) as entries:
            return list(entries)


def make_roots(folders: Sequence[Path]) -> list[Root]:
    """One root per distinct folder; equal names get a number."""
    roots: list[Root] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; expected the folder of a run or evaluation, or one of several")
        path = folder.resolve()
        if any(path == root.path for root in roots):
            continue
        taken, name = {root.name for root in roots}, path.name or "root"
        roots.append(Root(name if name not in taken else f"{name}~{len(roots) + 1}", path))
    return roots


def _subfolders(folder: Path) -> list[Path]:
    """Visible subfolders, including links to folders."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(each.path) for each in entries if not each.name.startswith(".") and each.is_dir())
    except OSError:  # unreadable
        return []
