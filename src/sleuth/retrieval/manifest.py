"""The manifest of an index folder: what was indexed, how, and by which versions."""

import hashlib
import json
import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from sleuth import __version__
from sleuth.errors import InputError
from sleuth.retrieval.settings import AnnSettings, BM25Settings, EncoderSettings, Kind, Section
from sleuth.runs.checksums import SEAL, file_sha256, files_sha256, list_files, seal, unseal

FORMAT: Literal[2] = 2
NAME = "manifest.json"
LIBRARIES = ("numpy", "PyStemmer", "torch", "transformers", "sentence-transformers", "faiss-cpu")
EDGE = 1 << 20
WHOLE = 256 << 20  # bytes up to which a file is read whole when an index is opened
OTHERS = {"run": "a run", "world": "a world", "evaluation": "an evaluation", "questions": "questions"}
ADDRESS = re.compile(r"[\w.-]+:\d+(/.*)?")


class Stamp(Section):
    """A file named by its contents; `edges` covers its two ends, for a check that does not read all of it."""

    path: str
    bytes: int
    edges: str

    @classmethod
    def of(cls, file: Path, path: str) -> "Stamp":
        """The stamp of a file that the index folder knows as `path`."""
        return cls(path=path, bytes=file.stat().st_size, edges=edges_hash(file))


class CorpusStamp(Stamp):
    """A corpus, or a file of the index itself, with the hash of all of it."""

    sha256: str


class Manifest(Section):
    """An index folder in words; paths are as seen from the folder."""

    format: Literal[2] = FORMAT
    kind: Kind
    corpus: CorpusStamp
    passages: int
    skipped: tuple[str, ...] = ()  # documents of the source that could not be read
    counts: dict[str, int]
    bm25: BM25Settings | None = None
    encoder: EncoderSettings | None = None
    encoder_sha256: str | None = None
    dimensions: int | None = None
    ann: AnnSettings | None = None
    faiss: tuple[Stamp, ...] = ()  # published files that are searched as they are
    libraries: dict[str, str]
    files: tuple[CorpusStamp, ...] = ()  # of the folder; none in one that an older version built

    def write(self, folder: Path) -> None:
        (folder / NAME).write_bytes(seal(self.model_dump(mode="json")))


def read(folder: Path) -> Manifest:
    """The manifest of an index folder; a folder that is none, or of another format, is an InputError."""
    path = folder / NAME
    if not path.is_file():
        raise InputError(f"{_not_an_index(folder)}; make one with: sleuth index build SOURCE --out DIR")
    try:
        written = path.read_bytes()
        content = json.loads(written)
        if isinstance(content, dict) and SEAL in content:  # an older version wrote none
            content = unseal(path, written)
        if isinstance(content, dict) and content.get("format") != FORMAT:
            if isinstance(kind := content.get("kind"), str) and kind in OTHERS:
                inside = f"; its index is {folder / 'index'}" if (folder / "index" / NAME).is_file() else ""
                raise InputError(f"{folder} is no index folder: it is that of {OTHERS[kind]}{inside}")
            found = content.get("format")
            raise InputError(f"{folder} has index format {found!r}, expected {FORMAT}; build the index again")
        return Manifest.model_validate_json(json.dumps(content))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({_first_line(error)}); build the index again") from error


def fingerprint(folder: Path) -> str:
    """The hash of what an index holds, by its manifest: where corpus and encoder lie is no part of it."""
    written = read(folder).model_dump(mode="json", exclude={"encoder": {"model"}, "files": True})
    for stamp in (written["corpus"], *written["faiss"]):
        del stamp["path"]
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


def libraries() -> dict[str, str]:
    """The versions that shape an index."""
    return {"sleuth": __version__} | {name: found for name in LIBRARIES if (found := _version(name)) is not None}


def matching_corpus(folder: Path, stamp: CorpusStamp, *, verify: bool, whole: int = WHOLE) -> Path:
    """The corpus of an index, checked to be the one indexed: by size and ends, with `verify` or up to `whole` bytes
    by all of it.
    """
    corpus = matching(folder, stamp, "corpus")
    if (verify or stamp.bytes <= whole) and file_sha256(corpus) != stamp.sha256:
        raise _changed("corpus", corpus, folder)
    return corpus


def stamps(folder: Path, *left_out: str) -> tuple[CorpusStamp, ...]:
    """The stamps of the files of a folder, but for those named."""
    names = [name for name in list_files(folder) if name not in left_out]
    found = files_sha256(folder, names)
    return tuple(CorpusStamp(**Stamp.of(folder / name, name).model_dump(), sha256=found[name]) for name in names)


def require_files(folder: Path, manifest: Manifest, *, verify: bool, whole: int = WHOLE) -> None:
    """Refuses an index with a file that is not what was written.

    Files up to `whole` bytes are read whole, larger ones at both ends, or with `verify` whole as well: reading tens of
    gigabytes would take minutes before the first search.
    """
    for stamp in manifest.files:
        file = folder / stamp.path
        if not file.is_file():
            raise InputError(f"{file} of the index {folder} is missing; put it back or build the index again")
        if file.stat().st_size != stamp.bytes or edges_hash(file) != stamp.edges:
            raise _damaged(file, folder)
    expected = {stamp.path: stamp.sha256 for stamp in manifest.files if verify or stamp.bytes <= whole}
    for name, found in files_sha256(folder, expected).items():
        if found != expected[name]:
            raise _damaged(folder / name, folder)


def matching(folder: Path, stamp: Stamp, noun: str) -> Path:
    """A file that an index refers to, checked by size and ends to be the one it was made from."""
    file = Path(os.path.normpath(folder.resolve() / stamp.path))
    if not file.is_file():
        raise InputError(
            f"the {noun} {file} of the index {folder} does not exist; put it back or build the index again"
        )
    if file.stat().st_size != stamp.bytes or edges_hash(file) != stamp.edges:
        raise _changed(noun, file, folder)
    return file


def seen_from(file: Path, folder: Path) -> str:
    """The way from an index folder to a file: relative where they can be moved together, else absolute."""
    place, home = file.resolve(), folder.resolve()
    return os.path.relpath(place, home) if place.is_relative_to(home.parent) else str(place)


def edges_hash(path: Path) -> str:
    """The hash of the first and the last of a file."""
    with path.open("rb") as file:
        first = file.read(EDGE)
        file.seek(max(0, path.stat().st_size - EDGE))
        return hashlib.sha256(first + file.read(EDGE)).hexdigest()


def _not_an_index(folder: Path) -> str:
    if ADDRESS.fullmatch(str(folder)):
        return f"{folder} is no index folder; for a server write http://{folder}"
    if not folder.exists():
        return f"{folder} is no index folder: it does not exist"
    if folder.is_file():
        return f"{folder} is no index folder: it is a file"
    return f"{folder} is no index folder: it holds no {NAME}"


def _changed(noun: str, file: Path, folder: Path) -> InputError:
    return InputError(f"the {noun} {file} changed after {folder} was built from it; build the index again")


def _damaged(file: Path, folder: Path) -> InputError:
    return InputError(f"{file} of the index {folder} is damaged: it is not what was written; build the index again")


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _first_line(error: Exception) -> str:
    """What is wrong, in one line: pydantic writes a paragraph."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or NAME}: {first['msg']}"
    return str(error)
