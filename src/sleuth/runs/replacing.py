"""Files and folders that appear whole: written under another name, synced, and renamed."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sleuth.errors import InputError
from sleuth.runs.failures import explained
from sleuth.runs.temporaries import ASIDE, remove, remove_abandoned, temporary_for

PRIVATE = 0o700  # of folders that hold documents, questions and settings


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling for a file or folder; it takes the name `path` on success and is gone on failure.

    What was there is replaced; what another process put there meanwhile is not. What killed processes of this machine
    left of the same is removed.
    """
    temporary = temporary_for(path.name, path.parent)
    replaced = os.path.lexists(path)
    try:
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(path.name, path.parent)
            yield temporary
            sync_tree(temporary)
            if replaced:
                _rename(temporary, path)
            else:
                _rename_new(temporary, path)
            _sync(path.parent)
    except BaseException:
        remove(temporary)
        raise


def _rename(source: Path, target: Path) -> None:
    """Puts `source` in the place of `target`; a folder cannot take the name of another, so the old one steps aside."""
    aside = temporary_for(f"{ASIDE}{target.name}", target.parent)
    if target.is_dir():
        target.rename(aside)
    source.replace(target)
    remove(aside)
    # Only now: one that was left between the two steps above was the last copy.
    remove_abandoned(f"{ASIDE}{target.name}", target.parent)


def _rename_new(source: Path, target: Path) -> None:
    """Gives `source` a name that nothing had when it was begun."""
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
            raise
        raise InputError(
            f"another process wrote {target} meanwhile, which is left as it is; choose another name, or remove it"
        ) from error


def write_private(path: Path, content: bytes) -> None:
    """Writes a new file that nobody but its owner may read."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)


def sync_tree(path: Path) -> None:
    """Waits until a file, or a folder with all that is in it, is on the disk."""
    for inner in path.rglob("*"):
        _sync(inner)
    _sync(path)


def _sync(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
