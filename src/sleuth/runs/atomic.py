"""Atomic writes: a file or folder is written under a temporary name, synced to disk, and renamed when complete."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from platform import node
from secrets import token_hex
from zlib import crc32

from sleuth.errors import InputError

PRIVATE = 0o700  # mode of folders with documents, questions and settings
TEMPORARY = ".tmp-"  # separates the owner from the final name
ASIDE = "old-"  # prefix of a folder moved aside while its replacement is renamed
OWNER = re.compile(r"\.([0-9a-f]{8})-(\d{1,9})-[0-9a-f]{6}")  # host, process id, random suffix
TORCH_WRITER = "inline_container"  # the source file that torch names if its writer fails
REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EFBIG: "it exceeds the file size limit; raise the limit (ulimit -f) or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission is denied; choose another folder",
    errno.ENOTDIR: "a parent is a file, not a folder; choose another folder",
    errno.EEXIST: "a file exists where a folder is expected; choose another folder",
}


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling that is renamed to `path` on success and removed on failure.

    Replaces an existing `path`. Raises InputError if another process creates `path` meanwhile, and keeps its version.
    """
    temporary = temporary_path(path)
    replaces = os.path.lexists(path)
    try:
        with explain_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(path)
            yield temporary
            sync_tree(temporary)
            if replaces:
                replace_path(temporary, path)
            else:
                _rename_new(temporary, path)
            _sync(path.parent)
    except BaseException:
        remove(temporary)
        raise


def require_new(path: Path) -> None:
    """Raise InputError if the path of an output exists."""
    if os.path.lexists(path):
        raise InputError(f"{path} already exists; choose another name, or remove it")


def replace_path(source: Path, target: Path) -> None:
    """Rename `source` to `target`; an existing folder cannot be overwritten, so it is moved aside first."""
    aside = target.with_name(f"{ASIDE}{target.name}")
    old = temporary_path(aside)
    if target.is_dir():
        target.rename(old)
    source.replace(target)
    remove(old)
    # Only now: if a process was killed between the two renames, the folder moved aside is the last copy.
    _remove_abandoned(aside)


def _rename_new(source: Path, target: Path) -> None:
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
            raise
        raise InputError(
            f"another process wrote {target} meanwhile; its version was kept: choose another name, or remove it"
        ) from error


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Convert a failure to write `path` into a one-line InputError with a remedy."""
    try:
        yield
    except Exception as error:
        remedy = _remedy(error, path)
        if remedy is None:
            raise
        raise InputError(f"{path} cannot be written: {remedy}") from error


def _remedy(error: Exception, path: Path) -> str | None:
    """Return the remedy for a failed write of `path`; None if the error has another cause."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None:
        # torch and numpy set no errno for a full disk; safetensors puts the number into its message.
        full = isinstance(error, RuntimeError | OSError) and shutil.disk_usage(path.parent).free < 1 << 16
        known = (number for number in REMEDIES if f"(os error {number})" in str(error))
        code = errno.ENOSPC if full else next(known, None)
    if code in REMEDIES:
        return REMEDIES[code]
    if isinstance(error, RuntimeError) and TORCH_WRITER in str(error):
        # A quota or a network file system may leave space free when a write fails.
        free = shutil.disk_usage(path.parent).free / 1e9
        return f"a write failed, with {free:.1f} GB free there; free some space and try again"
    if isinstance(error, OSError) and error.filename:
        failed = Path(error.filename)
        temporary = failed.parent == path.parent and failed.name.endswith(f"{TEMPORARY}{path.name}")
        if failed == path.parent or temporary:
            return f"{error.strerror}; choose another folder"
    return None


def write_private(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)


def sync_tree(path: Path) -> None:
    """Flush a file, or a folder with everything in it, to disk."""
    for inner in path.rglob("*"):
        _sync(inner)
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_path(final: Path) -> Path:
    """Return a unique sibling of `final` whose name identifies this host and process."""
    return final.with_name(f".{_host()}-{os.getpid()}-{token_hex(3)}{TEMPORARY}{final.name}")


def remove_leftovers(folder: Path) -> None:
    """Remove temporaries of interrupted processes from a folder that only this process writes to.

    A folder that was moved aside but never replaced is renamed back, because it is the last copy.
    """
    for path in sorted(folder.iterdir()):
        owner, temporary, name = path.name.partition(TEMPORARY)
        if temporary and (not owner or OWNER.fullmatch(owner)):
            final = folder / name.removeprefix(ASIDE)
            if name.startswith(ASIDE) and not os.path.lexists(final):
                path.rename(final)
            else:
                remove(path)


def _remove_abandoned(final: Path) -> None:
    """Remove temporaries of `final` whose process on this host is dead."""
    for path in final.parent.iterdir():
        owner, _, name = path.name.partition(TEMPORARY)
        match = OWNER.fullmatch(owner) if name == final.name else None
        if match is not None and match[1] == _host() and not _is_alive(int(match[2])):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, link or folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def remove_atomically(path: Path) -> None:
    """Remove a folder after renaming it, so that an interrupted removal leaves no partial folder under `path`."""
    remove(path.rename(path.with_name(f"{TEMPORARY}{path.name}")))


def _host() -> str:
    """Return a name for this host: process ids are meaningless on other hosts that share the folder."""
    return f"{crc32(node().encode()):08x}"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process exists, but belongs to another user
        return True
    return True
