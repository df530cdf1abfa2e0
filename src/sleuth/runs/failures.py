"""A write that failed, in one sentence with its remedy."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sleuth.errors import InputError
from sleuth.runs.temporaries import is_temporary_of

REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EFBIG: "it is larger than files may be here; raise the limit (ulimit -f) or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission is denied; choose another folder",
    errno.ENOTDIR: "a file stands where a folder should be; choose another folder",
    errno.EEXIST: "a file stands where a folder should be; choose another folder",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns a failure to write into one sentence."""
    try:
        yield
    except Exception as error:
        remedy = _remedy(error, path)
        if remedy is None:
            raise
        raise InputError(f"{path} cannot be written: {remedy}") from error


def _remedy(error: Exception, path: Path) -> str | None:
    """What to do about a failed write; None where it was not this path that could not be written."""
    fault = _fault(error, path.parent)
    if fault is not None:
        return REMEDIES[fault]
    if isinstance(error, OSError) and error.filename:
        failed = Path(error.filename)
        if failed == path.parent or is_temporary_of(failed, path):
            return f"{error.strerror}; choose another folder"
    return None


def _fault(error: Exception, folder: Path) -> int | None:
    """The error number behind a failed write, which safetensors puts into words; torch and numpy say nothing of it."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in REMEDIES else None
    if isinstance(error, RuntimeError | OSError) and shutil.disk_usage(folder).free < 1 << 16:
        return errno.ENOSPC
    return next((fault for fault in REMEDIES if f"(os error {fault})" in str(error)), None)
