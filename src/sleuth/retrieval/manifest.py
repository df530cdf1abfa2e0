"""The manifest of an index folder: what was indexed, with which settings and library versions."""

import hashlib
import json
import os
import re
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from sleuth import __version__
from sleuth.config.retrieval import IndexPlan
from sleuth.config.section import Section
from sleuth.corpus.chunks import WORDS
from sleuth.corpus.documents import READER
from sleuth.corpus.survey import DocumentSurvey
from sleuth.errors import InputError
from sleuth.runs.checksums import SEAL, file_sha256, files_sha256, list_files, seal, unseal

FORMAT: Literal[2] = 2
NAME = "manifest.json"
LIBRARIES = ("numpy", "PyStemmer", "py3langid", "torch", "transformers", "sentence-transformers", "faiss-cpu")
EDGE = 1 << 20
FULL_HASH_LIMIT = 256 << 20  # larger files are only checked at both ends when an index is opened
OTHER_FOLDERS = {"run": "a run", "world": "a world", "evaluation": "an evaluation", "questions": "questions"}
ADDRESS = re.compile(r"[\w.-]+:\d+(/.*)?")
KEY_ORDER = (
    *("format", "kind", "corpus", "passages", "skipped", "documents", "counts", "bm25"),
    *("encoder", "encoder_sha256", "dimensions", "ann", "faiss", "libraries", "files"),
)


class FileStamp(Section):
    """A file identified by its size and the hash of its first and last megabyte, which are cheap to check."""

    path: str
    bytes: int
    edges: str

    @classmethod
    def of(cls, file: Path, path: str) -> "FileStamp":
        """Stamp `file` under the name `path`."""
        return cls(path=path, bytes=file.stat().st_size, edges=edges_hash(file))

    def matches(self, file: Path) -> bool:
        return file.stat().st_size == self.bytes and edges_hash(file) == self.edges


class FileDigest(FileStamp):
    """A FileStamp with the hash of the whole file."""

    sha256: str


class DocumentCounts(Section):
    """The documents that an index was built from; documents.jsonl and skipped.jsonl in the folder name them."""

    files: int
    bytes: int
    skipped: int
    kinds: dict[str, int]
    languages: dict[str, int]
    words: int  # per passage
    reader: int  # version of the readers

    @classmethod
    def of(cls, survey: DocumentSurvey) -> "DocumentCounts":
        return cls(
            files=len(survey.documents),
            bytes=survey.bytes,
            skipped=len(survey.skipped),
            kinds=survey.kinds,
            languages=survey.languages,
            words=WORDS,
            reader=READER,
        )


class Manifest(IndexPlan):
    """Description of an index folder; paths are relative to the folder."""

    format: Literal[2] = FORMAT
    corpus: FileDigest
    passages: int
    skipped: tuple[str, ...] = ()  # unreadable documents, in folders written by older versions
    documents: DocumentCounts | None = None
    counts: dict[str, int]
    encoder_sha256: str | None = None
    dimensions: int | None = None
    faiss: tuple[FileStamp, ...] = ()  # imported FAISS files, searched in place
    libraries: dict[str, str]
    files: tuple[FileDigest, ...] = ()  # empty in folders written by older versions

    def write(self, folder: Path) -> None:
        content = self.model_dump(mode="json")
        (folder / NAME).write_bytes(seal({name: content[name] for name in (*KEY_ORDER, *content)}))


def read(folder: Path) -> Manifest:
    """Read the manifest of an index folder; raise InputError if it is missing, damaged or in another format."""
    path = folder / NAME
    if not path.is_file():
        reason = ": it is a file" if folder.is_file() else f": it contains no {NAME}"
        if ADDRESS.fullmatch(str(folder)):
            reason = f"; write the address of a server as http://{folder}"
        elif not folder.exists():
            reason = ": it does not exist"
        raise InputError(f"{folder} is not an index folder{reason}; build one: sleuth index build SOURCE --out DIR")
    try:
        written = path.read_bytes()
        content = json.loads(written)
        if isinstance(content, dict) and SEAL in content:  # older versions wrote no seal
            content = unseal(path, written)
        if isinstance(content, dict) and content.get("format") != FORMAT:
            if isinstance(kind := content.get("kind"), str) and kind in OTHER_FOLDERS:
                hint = f"; its index is {folder / 'index'}" if (folder / "index" / NAME).is_file() else ""
                raise InputError(f"{folder} is not an index folder: it is the folder of {OTHER_FOLDERS[kind]}{hint}")
            found = content.get("format")
            raise InputError(f"{folder} has index format {found!r}, expected {FORMAT}; build the index again")
        return Manifest.model_validate_json(json.dumps(content))
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):  # the text of a pydantic error is a paragraph
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc'])) or NAME}: {first['msg']}"
        raise InputError(f"{path} is damaged ({reason}); build the index again") from error


def fingerprint(folder: Path) -> str:
    """Hash the content of an index from its manifest, independent of the location of corpus and encoder."""
    content = read(folder).model_dump(mode="json", exclude={"encoder": {"model"}, "files": True, "documents": True})
    if content["bm25"] is not None and content["bm25"]["analyzer"] == 1:
        del content["bm25"]["analyzer"]  # older versions did not record it
    for stamp in (content["corpus"], *content["faiss"]):
        del stamp["path"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def library_versions() -> dict[str, str]:
    """Return the installed versions of the libraries that affect an index."""
    versions = {"sleuth": __version__}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def file_digests(folder: Path, exclude: Collection[str] = ()) -> tuple[FileDigest, ...]:
    """Hash all files of a folder except those in `exclude`."""
    names = [name for name in list_files(folder) if name not in exclude]
    hashes = files_sha256(folder, names)
    return tuple(FileDigest(**FileStamp.of(folder / name, name).model_dump(), sha256=hashes[name]) for name in names)


def verify_files(folder: Path, manifest: Manifest, *, full: bool, limit: int = FULL_HASH_LIMIT) -> None:
    """Raise InputError if a file of the index is missing or differs from what was written.

    Files up to `limit` bytes are hashed completely, larger ones at both ends unless `full`: hashing tens of gigabytes
    would delay the first search by minutes.
    """

    def damaged(file: Path) -> InputError:
        return InputError(f"{file} of the index {folder} is damaged: its checksum differs; build the index again")

    for stamp in manifest.files:
        file = folder / stamp.path
        if not file.is_file():
            raise InputError(f"{file} of the index {folder} is missing; restore it or build the index again")
        if not stamp.matches(file):
            raise damaged(file)
    expected = {stamp.path: stamp.sha256 for stamp in manifest.files if full or stamp.bytes <= limit}
    for name, found in files_sha256(folder, expected).items():
        if found != expected[name]:
            raise damaged(folder / name)


def verified_corpus(folder: Path, stamp: FileDigest, *, full: bool, limit: int = FULL_HASH_LIMIT) -> Path:
    """Locate the corpus of an index and check it in the same way as `verify_files`."""
    corpus = verified_file(folder, stamp, "corpus")
    if (full or stamp.bytes <= limit) and file_sha256(corpus) != stamp.sha256:
        raise _changed("corpus", corpus, folder)
    return corpus


def verified_file(folder: Path, stamp: FileStamp, noun: str) -> Path:
    """Locate a file outside the index folder and check its size and ends."""
    file = Path(os.path.normpath(folder.resolve() / stamp.path))
    if not file.is_file():
        raise InputError(f"the {noun} {file} of the index {folder} does not exist; restore it or build the index again")
    if not stamp.matches(file):
        raise _changed(noun, file, folder)
    return file


def relative_path(file: Path, folder: Path) -> str:
    """Return the path to store for a file: relative if the file and the index folder share a parent."""
    place, home = file.resolve(), folder.resolve()
    return os.path.relpath(place, home) if place.is_relative_to(home.parent) else str(place)


def edges_hash(path: Path) -> str:
    """Hash the first and the last megabyte of a file."""
    with path.open("rb") as file:
        first = file.read(EDGE)
        file.seek(max(0, path.stat().st_size - EDGE))
        return hashlib.sha256(first + file.read(EDGE)).hexdigest()


def _changed(noun: str, file: Path, folder: Path) -> InputError:
    return InputError(f"the {noun} {file} changed after {folder} was built from it; build the index again")
