"""Pieces of one file that were brought by hand: put together where the disk has room for it."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from sleuth.corpus.datasets.transfer import CHUNK, PARTIAL, held
from sleuth.corpus.progress import Progress
from sleuth.errors import InputError
from sleuth.runs.atomic import explain_write_errors


def join(pieces: Sequence[Path], target: Path, spare: int, progress: Progress) -> Path:
    """Writes the pieces one after the other into `target`, which bears its name when it is whole; they stay."""
    size = sum(piece.stat().st_size for piece in pieces)
    partial = target.with_name(target.name + PARTIAL)
    _require_space(pieces, target, size - (partial.stat().st_size if partial.exists() else 0), spare)
    with explain_write_errors(target), held(partial) as file:
        for piece in pieces:
            with piece.open("rb") as source:
                while chunk := source.read(CHUNK):
                    file.write(chunk)
                    progress(f"joining {target.name}", file.tell(), size)
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())
        partial.replace(target)
    return target


def _require_space(pieces: Sequence[Path], target: Path, needed: int, spare: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if needed + spare > free:
        raise InputError(
            f"{target} is not put together from its pieces, which takes {needed / 1e9:,.1f} GB more and "
            f"{spare / 1e9:,.1f} GB to spare, and there are {free / 1e9:,.1f} GB free; free some space, or append them "
            f"to the first one, which uses them up: {_appending(pieces, target)}"
        )


def _appending(pieces: Sequence[Path], target: Path) -> str:
    """The command that needs no more room than the largest piece but the first."""
    first, *others = (quote(piece.name) for piece in pieces)
    steps = [f"cat {each} >> {first} && rm {each}" for each in others]
    return " && ".join([f"cd {quote(str(target.parent))}", *steps, f"mv {first} {quote(target.name)}"])
