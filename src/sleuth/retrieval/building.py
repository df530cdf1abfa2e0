"""A folder under construction: kept when the work is killed, continued when it is begun again, renamed when whole."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sleuth.errors import InputError, UserError
from sleuth.runs import explained, replacing, sync_tree

ORDER = "order.json"
LOCK = "lock"


@contextmanager
def building(out: Path, order: Mapping[str, Any]) -> Iterator[Path]:
    """Yields the folder that becomes `out`; one left by a killed build of the same order is continued.

    An order is whatever decides the result. A folder left by another order is not touched: it may hold hours of work.
    """
    if os.path.lexists(out):
        raise InputError(f"{out} exists already and is left as it is; choose another folder")
    folder = out.with_name(f".building-{out.name}")
    with explained(out):
        folder.mkdir(parents=True, exist_ok=True)
        with _held(folder):
            _begin(folder, order)
            with _judged(folder):
                yield folder
            (folder / ORDER).unlink()
            (folder / LOCK).unlink()
            sync_tree(folder)
            folder.rename(out)


def stamp(source: Path) -> str:
    """What a source looks like from outside: names, sizes and times of its files; reading a large one takes minutes."""
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    seen = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


@contextmanager
def _judged(folder: Path) -> Iterator[None]:
    """Removes a build whose input is wrong: put right, it will be another one. A full disk is no fault of the input."""
    try:
        yield
    except UserError as error:
        if not isinstance(error.__cause__, OSError):
            shutil.rmtree(folder)
        raise


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keeps a second process from building the same; the lock ends with the process, however that ends."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another process is building in {folder}; wait for it, or end it first") from error
        yield


def _begin(folder: Path, order: Mapping[str, Any]) -> None:
    written = json.dumps(order, indent=2, sort_keys=True)
    path = folder / ORDER
    if not path.exists():
        with replacing(path) as whole:
            whole.write_text(written, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != written:
        raise InputError(
            f"{folder} holds an unfinished build from another source or with other settings; "
            "give those again to finish it, or remove that folder"
        )
