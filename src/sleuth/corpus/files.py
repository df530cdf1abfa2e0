"""The files of a source: a file, a folder, or a pattern, with what cannot be read from it."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sleuth.corpus.survey import SkippedFile
from sleuth.errors import InputError

PIECE = "part_"


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a source by name, without hidden ones; `skipped` are links, special files and closed folders."""

    source: Path
    files: tuple[Path, ...]
    skipped: tuple[SkippedFile, ...] = ()

    @property
    def base(self) -> Path:
        """The folder to which the names of the files are relative."""
        return self.source if self.source.is_dir() else self.source.parent


def list_files(source: Path, expected: str) -> SourceFiles:
    """List the files of a source; raise InputError, with what is `expected`, if there are none."""
    skipped: list[SkippedFile] = []
    if source.is_dir():
        files = list(_regular_files(source, _walk(source, skipped), skipped))
    elif source.is_file():
        files = [source]
    elif source.exists():
        raise InputError(f"{source} is neither a file nor a folder; give {expected}")
    else:
        files = _matching(source.parent, source.name, skipped)
    if not files:
        problem = "does not exist"
        if source.is_dir():
            unread = f" that can be read ({skipped[0].path}: {skipped[0].reason})" if skipped else ""
            problem = f"holds no files{unread}"
        raise InputError(f"{source} {problem}; give {expected}")
    if files == [source] and source.name.startswith(PIECE):
        files = _matching(source.parent, f"{PIECE}*", skipped)
    return SourceFiles(source, tuple(sorted(files, key=_sort_key)), tuple(sorted(skipped, key=lambda each: each.path)))


def display_name(path: Path, base: Path) -> str:
    """Return the path relative to a folder; bytes of a name that are not UTF-8 are escaped."""
    return os.fsencode(path.relative_to(base).as_posix()).decode("utf-8", "backslashreplace")


def _matching(folder: Path, pattern: str, skipped: list[SkippedFile]) -> list[Path]:
    inside = folder.iterdir() if folder.is_dir() else ()
    named = (path for path in inside if fnmatchcase(path.name, pattern) and path.name[0] != "." and not path.is_dir())
    return list(_regular_files(folder, named, skipped))


def _walk(folder: Path, skipped: list[SkippedFile]) -> Iterator[Path]:
    """Yield all files of a folder that are not hidden; links to folders are not followed."""

    def report(error: OSError) -> None:
        skipped.append(SkippedFile(display_name(Path(error.filename), folder), error.strerror or str(error)))

    for parent, folders, names in os.walk(folder, onerror=report):
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        skipped.extend(
            SkippedFile(display_name(Path(parent, name), folder), "a link to a folder, which is not followed")
            for name in linked
        )
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _regular_files(folder: Path, paths: Iterable[Path], skipped: list[SkippedFile]) -> Iterator[Path]:
    """Yield the regular files; a link to a file outside of the folder is skipped, because it could be served."""
    root = folder.resolve()
    # Files of the Hub's cache are links to a sibling of their snapshot folder.
    blobs = [each.parent / "blobs" for each in (root, *root.parents) if each.name == "snapshots"]
    for path in paths:
        reason = None
        if not path.is_file():
            reason = "a link that leads nowhere" if path.is_symlink() else "not a regular file"
        elif path.is_symlink() and not any(path.resolve().is_relative_to(each) for each in (root, *blobs)):
            reason = (
                f"a link to {os.fsencode(path.resolve()).decode('utf-8', 'backslashreplace')}, outside of the folder"
            )
        if reason is None:
            yield path
        else:
            skipped.append(SkippedFile(display_name(path, folder), reason))


def _sort_key(path: Path) -> tuple[str, int]:
    """Sort key: by name, with numbered pieces in numeric order."""
    number = path.name.removeprefix(PIECE)
    numbered = number != path.name and number.isdecimal()
    return (path.parent.as_posix(), int(number)) if numbered else (path.as_posix(), -1)
