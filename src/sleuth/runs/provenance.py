"""What a run was made from: fingerprints of files, and the version of the code."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from sleuth import __version__
from sleuth.errors import InputError


def fingerprint(path: Path) -> str:
    """SHA-256 of a file, or of a folder by the names and contents of its files."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give a file or a folder")
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    inner = sorted((each.relative_to(path).as_posix(), fingerprint(each)) for each in path.rglob("*") if each.is_file())
    return hashlib.sha256(json.dumps(inner).encode()).hexdigest()


def code_hash() -> str:
    """SHA-256 of the package's source by the names and contents of its files: a version says nothing of local edits."""
    package = Path(__file__).parents[1]
    found = sorted((path.relative_to(package).as_posix(), fingerprint(path)) for path in package.rglob("*.py"))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def outline(folder: Path) -> str:
    """A hash of the names, sizes and times of a folder's files: to read the weights of a model may take minutes."""
    files = ((each, each.stat()) for each in sorted(folder.iterdir()) if each.is_file())
    inner = [(each.name, found.st_size, found.st_mtime_ns) for each, found in files]
    return hashlib.sha256(json.dumps(inner).encode()).hexdigest()


def code_version() -> str:
    """The version of the package, and in a checkout the commit, marked when files differ from it."""
    checkout = Path(__file__).parents[3]
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return __version__
    command = [git, "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    return f"{__version__}+{commit}" if commit else __version__
