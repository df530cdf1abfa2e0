"""The folders that are shown: every file the viewer reads is opened here, and none that lies outside of them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sleuth.errors import InputError
from sleuth.http.responses import HttpProblem

MANIFEST = "manifest.json"
DEEPEST = 4  # folders between a root and what is found in it
MOST = 32 << 20  # bytes of a file that is read at once
MOST_MANIFEST = 1 << 20  # bytes of a manifest, which is read for every list


@dataclass(frozen=True, slots=True)
class Root:
    """A folder that is shown, under a name that no other has; `path` is free of links."""

    name: str
    path: Path

    def folders(self) -> Iterator[tuple[str, Path]]:
        """The folders with a manifest in or below this one, each with its name for clients; none inside another."""
        yield from self._found(self.path, self.name, DEEPEST)

    def holds(self, path: Path) -> bool:
        """Whether a path lies in here when every link on its way was followed."""
        return path.resolve().is_relative_to(self.path)

    def _found(self, folder: Path, name: str, deeper: int) -> Iterator[tuple[str, Path]]:
        """Links are not followed further: one out of here is named, so that it can be said why it is not shown."""
        link = folder.is_symlink()
        if (link and not self.holds(folder)) or (folder / MANIFEST).exists():
            yield name, folder
        elif deeper and not link:
            for inner in _inner(folder):
                yield from self._found(inner, f"{name}/{inner.name}", deeper - 1)


@dataclass(frozen=True, slots=True)
class Shown:
    """A run or an evaluation in one of the roots; its files are named by the program, never by a client."""

    id: str
    path: Path
    root: Root

    def there(self, name: str) -> Path | None:
        """A plain file of the folder; None where it is missing, of another kind, or a link out of the root."""
        path = self.path / name
        return path if path.is_file() and self.root.holds(path) else None

    def open(self, name: str) -> BinaryIO:
        """A file of the folder to read from."""
        path = self.there(name)
        if path is None:
            raise HttpProblem(404, f"there is no file {name} in {self.id}")
        return path.open("rb")

    def read(self, name: str) -> bytes | None:
        """A small file as a whole; None where it is not there."""
        path = self.there(name)
        if path is None:
            return None
        most, size = MOST_MANIFEST if name == MANIFEST else MOST, path.stat().st_size
        if size > most:
            raise HttpProblem(503, f"{name} of {self.id} has {size:,} bytes; up to {most:,} are shown")
        return path.read_bytes()

    def names(self, inner: str) -> list[os.DirEntry[str]]:
        """What stands in a folder inside; nothing where that is missing or leads out of the root."""
        folder = self.path / inner
        if not folder.is_dir() or not self.root.holds(folder):
            return []
        with os.scandir(folder) as entries:
            return list(entries)


def roots_of(folders: Sequence[Path]) -> list[Root]:
    """The roots of folders as they were given; two of one name are told apart by a number."""
    roots: list[Root] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(
                f"{folder} is no folder; give the folder of a run or of an evaluation, or one that has some"
            )
        path = folder.resolve()
        if any(path == root.path for root in roots):
            continue
        taken, name = {root.name for root in roots}, path.name or "root"
        roots.append(Root(name if name not in taken else f"{name}~{len(roots) + 1}", path))
    return roots


def _inner(folder: Path) -> list[Path]:
    """Folders inside, links to folders among them."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(each.path) for each in entries if not each.name.startswith(".") and each.is_dir())
    except OSError:  # a folder that may not be read holds nothing to show
        return []
