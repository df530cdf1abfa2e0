"""The index folder: built from documents, and opened for search."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.passages import OFFSETS, PassageStore
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.retrieval.base import Ranker
from sleuth.retrieval.building import building, stamp
from sleuth.retrieval.groundwork import Ground, corpus_stamp, finish, ground
from sleuth.retrieval.hybrid import Hybrid
from sleuth.retrieval.indexed import Indexed
from sleuth.retrieval.manifest import Manifest, libraries, matching, matching_corpus, read, require_files
from sleuth.retrieval.settings import EncoderSettings, Plan
from sleuth.retrieval.vectors import ann, faiss_file, matrix
from sleuth.retrieval.words import bm25
from sleuth.retrieval.words.bm25 import BM25
from sleuth.retrieval.words.terms import Terms
from sleuth.runs.atomic import require_new

if TYPE_CHECKING:
    from sleuth.retrieval.vectors.encoder import Encoder

WORDS = "bm25"


def build(
    source: Path,
    out: Path,
    plan: Plan | None = None,
    *,
    progress: Progress = silent,
    workers: int = 0,
    device: str = "auto",
) -> Manifest:
    """Indexes a source into a new folder, which appears when it is whole; killed and started again it goes on."""
    plan = plan or Plan.of("bm25")
    require_new(out)
    order = {"source": stamp(source), **plan.model_dump(mode="json")}
    # Loaded first: a name that is wrong is found before hours of other work.
    encoder = _encoder(plan.encoder, device)
    if plan.bm25 is not None:
        Terms(plan.bm25.stemmer)
    with building(out, order) as folder:
        laid = ground(source, folder, progress)
        counts: dict[str, int] = {}
        if plan.bm25 is not None:
            offsets = folder / OFFSETS
            counts |= bm25.build(laid.corpus, offsets, folder / WORDS, plan.bm25, workers=workers, progress=progress)
        if encoder is not None:
            counts |= _vectors(laid, folder, plan, encoder, progress)
        manifest = Manifest(
            kind=plan.kind,
            corpus=corpus_stamp(laid, folder, out),
            passages=laid.survey.passages,
            skipped=laid.skipped,
            counts=counts,
            bm25=plan.bm25,
            encoder=plan.encoder,
            encoder_sha256=encoder.fingerprint if encoder else None,
            dimensions=encoder.dimensions if encoder else None,
            ann=plan.ann,
            libraries=libraries(),
        )
        # A graph holds the vectors itself; lists hold them compressed, and what is found there is scored again.
        return finish(
            manifest, folder, *([matrix.VECTORS] if plan.ann is not None and plan.ann.method == "hnsw" else [])
        )


def load(
    folder: Path, *, verify: bool = False, device: str = "auto", rerank: str | None = None, depth: int = 10
) -> Indexed:
    """The retriever of an index folder; `verify` reads corpus and index whole to be sure that they are as written.

    Vectors are searched on `device`; a cross-encoder named by `rerank` orders the best `depth` hits anew.
    """
    manifest = read(folder)
    store = open_passages(folder, verify=verify)
    if len(store) != manifest.passages:
        raise InputError(
            f"{folder} has offsets of {len(store):,} passages, expected {manifest.passages:,}; build the index again"
        )
    ranker = _ranker(folder, manifest, store, device)
    return Indexed(ranker if rerank is None else _reranked(ranker, store, rerank, device, depth), store)


def open_passages(folder: Path, *, verify: bool = False) -> PassageStore:
    """The passages of an index folder, whose files are as they were written; see `load` for `verify`."""
    manifest = read(folder)
    require_files(folder, manifest, verify=verify)
    return PassageStore(matching_corpus(folder, manifest.corpus, verify=verify), folder)


def _encoder(settings: EncoderSettings | None, device: str) -> "Encoder | None":
    if settings is None:
        return None
    from sleuth.retrieval.vectors.encoder import Encoder

    return Encoder.load(settings, None if device == "auto" else device)


def _vectors(laid: Ground, folder: Path, plan: Plan, encoder: "Encoder", progress: Progress) -> dict[str, int]:
    matrix.build(laid.corpus, folder / OFFSETS, folder, encoder, progress)
    if plan.ann is None:
        return {}
    encoded = matrix.open_vectors(folder, laid.survey.passages, encoder.dimensions)
    return ann.build(encoded, folder, plan.ann, progress)


def _ranker(folder: Path, manifest: Manifest, store: PassageStore, device: str) -> Ranker:
    parts: list[Ranker] = []
    if manifest.bm25 is not None:
        parts.append(BM25(folder / WORDS, manifest.bm25, store.ranks))
    if manifest.encoder is not None:
        parts.append(_by_vectors(folder, manifest, store, device))
    return parts[0] if len(parts) == 1 else Hybrid(parts, store.ranks)


def _by_vectors(folder: Path, manifest: Manifest, store: PassageStore, device: str) -> Ranker:
    from sleuth.retrieval.vectors.dense import Dense, Vectors, devices_for
    from sleuth.retrieval.vectors.encoder import Encoder

    settings, dimensions = manifest.encoder, manifest.dimensions
    if settings is None or dimensions is None:
        raise InputError(f"{folder} names no encoder for its vectors; build the index again")
    encoder = Encoder.load(settings, None if device == "auto" else device)
    if encoder.fingerprint != manifest.encoder_sha256:
        raise InputError(
            f"the encoder {settings.model} is not the one {folder} was built with: its weights differ; "
            "put that one back, or build the index again"
        )
    if manifest.ann is not None:
        files = [matching(folder, stamp, "FAISS index") for stamp in manifest.faiss] or [folder / ann.FILE]
        whole = manifest.ann.method == "ivfpq" and not manifest.faiss
        rescored = matrix.open_vectors(folder, len(store), dimensions) if whole else None
        return ann.Ann(faiss_file.open_kept(files), encoder.encode_queries, store.ranks, manifest.ann, rescored)
    encoded: NDArray[np.float16] = matrix.open_vectors(folder, len(store), dimensions)
    devices = devices_for(device, encoded.nbytes)
    return Dense(Vectors(encoded, store.ranks, devices, unit=settings.normalise), encoder.encode_queries)


def _reranked(ranker: Ranker, store: PassageStore, model: str, device: str, depth: int) -> Ranker:
    from sleuth.retrieval.rerank import Reranked
    from sleuth.retrieval.vectors.encoder import load_cross_encoder

    return Reranked(ranker, store, load_cross_encoder(model, None if device == "auto" else device), depth)
