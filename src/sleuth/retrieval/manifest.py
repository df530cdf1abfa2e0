"""The manifest of an index folder: what was indexed, how, and by which versions."""

import hashlib
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sleuth import __version__
from sleuth.errors import InputError

FORMAT: Literal[1] = 1
NAME = "manifest.json"
LIBRARIES = ("bm25s", "PyStemmer", "numpy")
EDGE = 1 << 20


class Section(BaseModel):
    """A part of the manifest: types are exact, unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CorpusStamp(Section):
    """A corpus named by its contents; `edges` covers its two ends, for a check that does not read all of it."""

    path: str
    bytes: int
    sha256: str
    edges: str

    @classmethod
    def of(cls, corpus: Path, path: str) -> "CorpusStamp":
        """The stamp of a plain corpus that the index folder knows as `path`."""
        return cls(path=path, bytes=corpus.stat().st_size, sha256=_hash(corpus), edges=_edges_hash(corpus))


class Manifest(Section):
    """An index folder in words; paths are as seen from the folder."""

    format: Literal[1] = FORMAT
    kind: Literal["bm25"]
    corpus: CorpusStamp
    passages: int
    counts: dict[str, int]
    settings: dict[str, str | float]
    libraries: dict[str, str]

    def write(self, folder: Path) -> None:
        (folder / NAME).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> Manifest:
    """The manifest of an index folder; a folder that is none, or of another format, is an InputError."""
    path = folder / NAME
    if not path.is_file():
        raise InputError(f"{folder} is no index folder: it holds no {NAME}; make one with: sleuth index build")
    try:
        content = json.loads(path.read_bytes())
        if isinstance(content, dict) and content.get("format") != FORMAT:
            found = content.get("format")
            raise InputError(f"{folder} has index format {found!r}, expected {FORMAT}; build the index again")
        return Manifest.model_validate(content)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged ({_first_line(error)}); build the index again") from error


def libraries() -> dict[str, str]:
    """The versions that shape an index."""
    return {"sleuth": __version__} | {name: version(name) for name in LIBRARIES}


def matching_corpus(folder: Path, stamp: CorpusStamp, *, verify: bool) -> Path:
    """The corpus of an index, checked to be the one indexed: by size and ends, or with `verify` by all of it."""
    corpus = Path(os.path.normpath(folder.resolve() / stamp.path))
    if not corpus.is_file():
        raise InputError(
            f"the corpus {corpus} of the index {folder} does not exist; put it back or build the index again"
        )
    same = corpus.stat().st_size == stamp.bytes and _edges_hash(corpus) == stamp.edges
    if not same or (verify and _hash(corpus) != stamp.sha256):
        raise InputError(f"the corpus {corpus} changed after {folder} was built from it; build the index again")
    return corpus


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _edges_hash(path: Path) -> str:
    with path.open("rb") as file:
        first = file.read(EDGE)
        file.seek(max(0, path.stat().st_size - EDGE))
        return hashlib.sha256(first + file.read(EDGE)).hexdigest()


def _first_line(error: Exception) -> str:
    """What is wrong, in one line: pydantic writes a paragraph."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or NAME}: {first['msg']}"
    return str(error)
