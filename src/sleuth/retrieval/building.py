"""A folder under construction: kept when the work is killed, continued when it is begun again, renamed when whole."""

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sleuth.corpus.sources import files_of
from sleuth.errors import InputError, UserError
from sleuth.runs.atomic import atomic_write, explain_write_errors, remove_leftovers, require_new, sync_tree
from sleuth.runs.lock import locked

ORDER = "order.json"
LOCK = "lock"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def building(out: Path, order: Mapping[str, Any], *, kept_on_error: bool = False) -> Iterator[Path]:
    """Yields the folder that becomes `out`; one left by a killed build of the same order is continued.

    An order is whatever decides the result. A folder left by another order is not touched: it may hold hours of work.
    A fault of the input removes the folder, unless it is `kept_on_error`.
    """
    require_new(out)
    folder = out.with_name(f".building-{out.name}")
    busy = f"another process is building in {folder}; wait for it, or end it first"
    with explain_write_errors(out), _made(folder), locked(folder / LOCK, busy):
        _begin(folder, order)
        remove_leftovers(folder)
        with nullcontext() if kept_on_error else _judged(folder):
            yield folder
        # On the disk before its order goes: without one, what is here would count for nothing.
        sync_tree(folder)
        (folder / ORDER).unlink()
        (folder / LOCK).unlink()
        folder.rename(out)


def stamp(source: Path) -> str:
    """What a source looks like from outside: names, sizes and times of its files; reading a large one takes minutes."""
    seen = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in files_of(source)]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Makes the folder, and when it is removed those that were made on the way to it."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # of a file system that keeps no files of others
        raise InputError(f"{folder} cannot be made: {error.strerror}; choose another folder") from error
    try:
        yield
    finally:
        for parent in missing if not folder.exists() else ():
            if not any(parent.iterdir()):
                parent.rmdir()


@contextmanager
def _judged(folder: Path) -> Iterator[None]:
    """Removes a build whose input is wrong: put right, it will be another one. A full disk is no fault of the input."""
    try:
        yield
    except UserError as error:
        cause = error.__cause__
        if not (isinstance(cause, OSError) and cause.errno in NO_ROOM):
            shutil.rmtree(folder)
        raise


def _begin(folder: Path, order: Mapping[str, Any]) -> None:
    written = json.dumps(order, indent=2, sort_keys=True)
    path = folder / ORDER
    if not path.exists():
        _empty(folder)
        with atomic_write(path) as whole:
            whole.write_text(written, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != written:
        raise InputError(
            f"{folder} holds an unfinished build from another source or with other settings; "
            "give those again to finish it, or remove that folder"
        )


def _empty(folder: Path) -> None:
    """Removes what a build left that was killed when it was done: nobody knows any more what it was of."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()
