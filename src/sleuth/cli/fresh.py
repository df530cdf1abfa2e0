"""A file that a command is about to write."""

from pathlib import Path

from sleuth.errors import InputError


def require_new(path: Path | None) -> None:
    """Refuses a file that is there already, before hours of work would end in nothing."""
    if path is not None and path.exists():
        raise InputError(f"{path} is already there; name a new file, or move the old one away")
    if path is not None and not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
