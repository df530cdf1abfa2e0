"""The checksums of a checkpoint, with its format: verified whenever it is loaded."""

from pathlib import Path

from sleuth.errors import InputError
from sleuth.runs.checksums import digests, unsealed
from sleuth.runs.documents import parsed

FORMAT = 2  # 1 had no checksums
TRAINER = "trainer"
CHECKSUMS = f"{TRAINER}/checksums.json"


def verify(folder: Path, *, resuming: bool = False) -> bool:
    """Refuses a checkpoint whose files are not those that were written; without `resuming` the trainer's are not read.

    False where there is nothing to verify by: another model folder, or a checkpoint of format 1.
    """
    path = folder / CHECKSUMS
    if not path.is_file():
        return False
    known = _read(path)
    expected = {name: known[name] for name in known if resuming or not name.startswith(f"{TRAINER}/")}
    for name in expected:
        if not (folder / name).is_file():
            raise _damaged(folder, f"{folder / name} is missing")
    for name, found in digests(folder, expected).items():
        if found != expected[name]:
            raise _damaged(folder, f"{folder / name} does not match its checksum")
    return True


def _read(path: Path) -> dict[str, str]:
    """The checksums by file; those of a newer format, or damaged ones, are an InputError."""
    written = path.read_bytes()
    version = parsed(written, str(path)).get("format")
    if isinstance(version, int) and version > FORMAT:
        raise InputError(
            f"{path} is of checkpoint format {version}, and this version of Sleuth reads up to {FORMAT}; update Sleuth"
        )
    known: dict[str, str] = unsealed(path, written)["files"]
    return known


def _damaged(folder: Path, what: str) -> InputError:
    return InputError(f"the checkpoint {folder} is damaged: {what}; remove it to use the one before")
