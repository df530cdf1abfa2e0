"""Checksums of files, folders, checkpoints and source code, and manifests sealed with their own hash."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sleuth import __version__
from sleuth.errors import InputError
from sleuth.runs.json_files import Row, encode_json, parse_object

SEAL = "seal"
CHECKPOINT_FORMAT = 2  # format 1 had no checksums
TRAINER = "trainer"
CHECKSUMS = f"{TRAINER}/checksums.json"


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of all files in a folder."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give a file or a folder")
    if path.is_file():
        return file_sha256(path)
    return _hash_json([(name, file_sha256(path / name)) for name in list_files(path)])


def code_hash() -> str:
    """Return the SHA-256 of the package's source, which unlike the version reflects local edits."""
    package = Path(__file__).parents[1]
    names = sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    return _hash_json([(name, file_sha256(package / name)) for name in names])


def folder_stamp(folder: Path) -> str:
    """Hash the names, sizes and modification times of a folder's files, without reading their contents."""
    files = ((path, path.stat()) for path in sorted(folder.iterdir()) if path.is_file())
    return _hash_json([(path.name, status.st_size, status.st_mtime_ns) for path, status in files])


def code_version() -> str:
    """Return the package version and, in a git checkout, the commit, marked `-dirty` if there are local changes."""
    checkout = Path(__file__).parents[3]
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return __version__
    command = [git, "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    return f"{__version__}+{commit}" if commit else __version__


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each file by its path in a folder, reading several files in parallel."""
    wanted = list(names)
    # hashlib releases the GIL.
    with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as pool:
        return dict(zip(wanted, pool.map(lambda name: file_sha256(folder / name), wanted), strict=True))


def list_files(folder: Path) -> list[str]:
    """List all files in a folder and its subfolders by their relative path, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def seal(content: Mapping[str, Any]) -> bytes:
    """Encode a JSON document with a hash of the rest of the document as its last entry."""
    blank = encode_json({**content, SEAL: ""})
    return encode_json({**content, SEAL: hashlib.sha256(blank).hexdigest()})


def unseal(path: Path, written: bytes) -> Row:
    """Return the content of a sealed document without its seal; raise InputError if the document was changed."""
    content = parse_object(written, str(path))
    found = str(content.pop(SEAL, ""))
    if not found or hashlib.sha256(written.replace(found.encode(), b"")).hexdigest() != found:
        raise InputError(f"{path} is damaged: its contents do not match its seal; restore the original file")
    return content


def verify_checkpoint(folder: Path, *, resuming: bool = False) -> bool:
    """Raise InputError if files of a checkpoint are missing or changed; trainer state is checked if `resuming`.

    Returns False if there are no checksums, as in a plain model folder or a checkpoint of format 1.
    """
    path = folder / CHECKSUMS
    if not path.is_file():
        return False
    written = path.read_bytes()
    version = parse_object(written, str(path)).get("format")
    if isinstance(version, int) and version > CHECKPOINT_FORMAT:
        raise InputError(
            f"{path} has checkpoint format {version}, but this version of Sleuth reads up to {CHECKPOINT_FORMAT}; "
            "update Sleuth"
        )
    known: dict[str, str] = unseal(path, written)["files"]
    expected = {name: known[name] for name in known if resuming or not name.startswith(f"{TRAINER}/")}
    missing = next((f"{folder / name} is missing" for name in expected if not (folder / name).is_file()), None)
    found = {} if missing else files_sha256(folder, expected)
    changed = (f"{folder / name} does not match its checksum" for name in found if found[name] != expected[name])
    if problem := missing or next(changed, None):
        raise InputError(f"the checkpoint {folder} is damaged: {problem}; remove it to use the previous one")
    return True


def _hash_json(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
