"""The index folder: manifest, plain arrays, and the way to the passages."""

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import open_array
from sleuth.corpus.passages import PassageStore, build_offsets, lines, stream
from sleuth.errors import InputError
from sleuth.retrieval import bm25
from sleuth.retrieval.base import Retriever
from sleuth.retrieval.bm25 import BM25
from sleuth.retrieval.manifest import CorpusStamp, Manifest, libraries, matching_corpus, read
from sleuth.retrieval.terms import LANGUAGE
from sleuth.runs import replacing

ARRAYS = "bm25"
OFFSETS = "offsets.npy"
RANKS = "ranks.npy"
UNPACKED = "corpus.jsonl"
REPORT_EVERY = 1000

Progress = Callable[[int], None]


def build(corpus: Path, out: Path, k1: float = 0.9, b: float = 0.4, progress: Progress | None = None) -> Manifest:
    """Indexes a corpus into a new folder, which appears when it is whole; `progress` hears the passages read so far."""
    if os.path.lexists(out):
        raise InputError(f"{out} exists already and is left as it is; choose another folder for the index")
    with replacing(out) as folder:
        folder.mkdir()
        ids: list[str] = []
        counts = bm25.build(_contents(corpus, ids, progress), folder / ARRAYS, k1, b)
        np.save(folder / RANKS, _ranks(corpus, ids))
        plain = _plain(corpus, folder)
        if build_offsets(plain, folder / OFFSETS) != len(ids):
            raise InputError(f"the corpus {corpus} changed while it was indexed; run the command again")
        manifest = Manifest(
            kind="bm25",
            corpus=CorpusStamp.of(plain, _seen_from(plain, folder, out)),
            passages=len(ids),
            counts=counts,
            settings={"k1": float(k1), "b": float(b), "method": "lucene", "stemmer": LANGUAGE},
            libraries=libraries(),
        )
        manifest.write(folder)
    return manifest


def load(folder: Path, *, verify: bool = False) -> Retriever:
    """The retriever of an index folder; `verify` reads the whole corpus to be sure that it is the one indexed."""
    manifest = read(folder)
    corpus = matching_corpus(folder, manifest.corpus, verify=verify)
    ranks = open_array(folder / RANKS, manifest.passages)
    return BM25(folder / ARRAYS, ranks, PassageStore(corpus, folder / OFFSETS))


def _contents(corpus: Path, ids: list[str], progress: Progress | None) -> Iterator[str]:
    """The texts of a corpus; the ids are left in `ids`."""
    for passage in stream(corpus):
        ids.append(passage.id)
        if progress is not None and len(ids) % REPORT_EVERY == 0:
            progress(len(ids))
        yield passage.contents
    if progress is not None:
        progress(len(ids))


def _ranks(corpus: Path, ids: list[str]) -> NDArray[np.uint32]:
    """The place of each row when the rows are ordered by id; an id that comes twice is an InputError."""
    order = sorted(range(len(ids)), key=ids.__getitem__)
    for row, following in pairwise(order):
        if ids[row] == ids[following]:
            rows = f"passages {row + 1} and {following + 1}"
            raise InputError(f"{corpus}: {rows} have the same id {ids[row]!r}; give every passage an id of its own")
    ranks = np.empty(len(ids), np.uint32)
    ranks[order] = np.arange(len(ids), dtype=np.uint32)
    return ranks


def _plain(corpus: Path, folder: Path) -> Path:
    """The corpus as a file with random access: one that is compressed is unpacked into the index folder."""
    if corpus.suffix != ".gz":
        return corpus
    with (folder / UNPACKED).open("wb") as file:
        file.writelines(lines(corpus))
    return folder / UNPACKED


def _seen_from(plain: Path, folder: Path, out: Path) -> str:
    """The way from the index folder to the corpus: relative where they can be moved together, else absolute."""
    if plain.parent == folder:
        return plain.name
    place, home = plain.resolve(), out.resolve()
    return os.path.relpath(place, home) if place.is_relative_to(home.parent) else str(place)
