"""Names of what is not complete yet: whose they are, and which of them nobody will complete."""

import os
import re
import shutil
from pathlib import Path
from platform import node
from secrets import token_hex
from zlib import crc32

TEMPORARY = ".tmp-"  # before the name that something will have; before that stands whose it is
ASIDE = "old-"  # before the name of what steps aside while another takes its name
OWNER = re.compile(r"\.([0-9a-f]{8})-(\d{1,9})-[0-9a-f]{6}")  # machine, process, and letters of its own


def temporary_for(name: str, folder: Path) -> Path:
    """A name that no other process uses, nor this one again: machine, process and letters stand before it."""
    return folder / f".{_machine()}-{os.getpid()}-{token_hex(3)}{TEMPORARY}{name}"


def is_temporary_of(path: Path, final: Path) -> bool:
    """Whether a path is one under which `final` is being written."""
    return path.parent == final.parent and path.name.endswith(f"{TEMPORARY}{final.name}")


def remove_leftovers(folder: Path) -> None:
    """Removes what interrupted processes left half-written in a folder in which nobody else writes.

    What had stepped aside for a replacement that never came gets its name back: it is the last copy.
    """
    for path in sorted(folder.iterdir()):
        owner, temporary, name = path.name.partition(TEMPORARY)
        if temporary and (not owner or OWNER.fullmatch(owner)):
            final = folder / name.removeprefix(ASIDE)
            if name.startswith(ASIDE) and not os.path.lexists(final):
                path.rename(final)
            else:
                remove(path)


def remove_abandoned(name: str, folder: Path) -> None:
    """Removes temporaries of a name whose process is dead, as far as this machine can know."""
    for path in folder.iterdir():
        owner, _, rest = path.name.partition(TEMPORARY)
        known = OWNER.fullmatch(owner) if rest == name else None
        if known is not None and known[1] == _machine() and not _alive(int(known[2])):
            remove(path)


def remove(path: Path) -> None:
    """Removes a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _machine() -> str:
    """Process numbers mean something on one machine only, and folders are shared by several."""
    return f"{crc32(node().encode()):08x}"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # someone else's
        return True
    return True
