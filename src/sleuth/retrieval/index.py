"""Index folders: build from documents, import from FAISS, and search, including hybrid search and reranking."""

import asyncio
import math
import weakref
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sleuth.config.retrieval import INDEX_KINDS, AnnSettings, BM25Settings, EncoderSettings, IndexPlan, RetrievalConfig
from sleuth.corpus.arrays import sample_positions
from sleuth.corpus.passages import OFFSETS, PassageStore
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError, SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval import manifest, staging
from sleuth.retrieval.bm25.analyzer import BY_LANGUAGE, Analyzer, Version, stemmer_of
from sleuth.retrieval.bm25.build import build_index
from sleuth.retrieval.bm25.search import BM25
from sleuth.retrieval.dense import ann, faiss_file, vectors
from sleuth.retrieval.dense.encoder_config import encoder_settings
from sleuth.retrieval.manifest import DocumentCounts, FileStamp, Manifest, relative_path
from sleuth.retrieval.retriever import Ranker, Ranking, SearchOutcome
from sleuth.runs.atomic import require_new

if TYPE_CHECKING:
    from sleuth.retrieval.dense.encoder import Encoder, PairScorer

BM25_FOLDER = "bm25"
RRF_CONSTANT = 60  # Cormack, Clarke and Buettcher, SIGIR 2009


def plan_index(config: RetrievalConfig) -> IndexPlan:
    """Return the plan of the index that a run builds from its corpus."""
    version: Version = 2 if config.stemmer == BY_LANGUAGE else 1  # with a named stemmer, the scores of earlier runs
    bm25 = BM25Settings(k1=config.k1, b=config.b, stemmer=config.stemmer, analyzer=version)
    encoder = encoder_settings(config.encoder) if "encoder" in INDEX_KINDS[config.kind] else None
    return IndexPlan.of(config.kind, bm25, encoder)


def build(
    source: Path,
    out: Path,
    plan: IndexPlan | None = None,
    *,
    progress: Progress = silent,
    workers: int = 0,
    device: str = "auto",
    fingerprint: str | None = None,
    encode_blocks: vectors.EncodeBlocks | None = None,
) -> Manifest:
    """Index `source` into the new folder `out`, which appears when complete; an interrupted build resumes.

    `fingerprint` identifies the contents of the source; by default, the names and times of its files do. Passages are
    encoded on `device`, or by `encode_blocks`; both give the same vectors and continue each other's builds.
    """
    plan = plan or IndexPlan.of("bm25")
    require_new(out)
    # Create analyzer and encoder first: a wrong name must fail before hours of other work.
    encoder = load_encoder(plan, device)
    if plan.bm25 is not None:
        Analyzer(stemmer_of(plan.bm25.stemmer, ""))
    spec = {"source": fingerprint or staging.source_fingerprint(source), **plan.model_dump(mode="json")}
    # The failure of a cluster is no fault of the input, and must not cost the blocks that are already encoded.
    with staging.staged_folder(out, spec, keep_on_error=encode_blocks is not None) as folder:
        corpus = staging.prepare_corpus(source, folder, progress)
        return build_parts(
            plan, corpus, folder, out, encoder, progress=progress, workers=workers, encode_blocks=encode_blocks
        )


def load_encoder(plan: IndexPlan, device: str) -> "Encoder | None":
    """Load the encoder of a plan, if it has one."""
    if plan.encoder is None:
        return None
    from sleuth.retrieval.dense.encoder import Encoder

    return Encoder.load(plan.encoder, device)


def build_parts(
    plan: IndexPlan,
    corpus: staging.PlainCorpus,
    folder: Path,
    out: Path,
    encoder: "Encoder | None",
    *,
    progress: Progress,
    workers: int,
    known: vectors.KnownVectors | None = None,
    encode_blocks: vectors.EncodeBlocks | None = None,
) -> Manifest:
    """Build the parts of an index in the staging folder of `out`; `known` vectors are not computed again."""
    counts: dict[str, int] = {}
    if plan.bm25 is not None:
        target = folder / BM25_FOLDER
        counts |= build_index(corpus.path, folder / OFFSETS, target, plan.bm25, workers=workers, progress=progress)
    if encoder is not None:
        vectors.build(
            corpus.path, folder / OFFSETS, folder, encoder, progress, known=known, encode_blocks=encode_blocks
        )
        if plan.ann is not None:
            encoded = vectors.open_vectors(folder, corpus.survey.passages, encoder.dimensions)
            counts |= ann.build(encoded, folder, plan.ann, progress)
    built = Manifest(
        **dict(plan),
        corpus=staging.corpus_stamp(corpus, folder, out),
        passages=corpus.survey.passages,
        documents=DocumentCounts.of(corpus.documents) if corpus.documents else None,
        counts=counts,
        encoder_sha256=encoder.fingerprint if encoder else None,
        dimensions=encoder.dimensions if encoder else None,
        libraries=manifest.library_versions(),
    )
    # HNSW stores the vectors itself. IVF-PQ compresses them, so its candidates are rescored with the vectors file.
    redundant = [vectors.VECTORS] if plan.ann is not None and plan.ann.method == "hnsw" else []
    return staging.finish(built, folder, *redundant)


def import_faiss(
    published: Path, source: Path, out: Path, settings: EncoderSettings, *, progress: Progress = silent
) -> Manifest:
    """Create an index folder: a flat index is converted to fp16 vectors, any other is searched in place."""
    from sleuth.retrieval.dense.encoder import Encoder

    require_new(out)
    described = faiss_file.describe(faiss_file.pieces(published))
    encoder = Encoder.load(settings)
    if described.dimensions != encoder.dimensions:
        raise InputError(
            f"{published} has vectors of {described.dimensions} dimensions, the encoder {settings.model} produces "
            f"{encoder.dimensions}; name the encoder of these vectors"
        )
    edges = faiss_file.edges(described.files)
    spec = {"source": staging.source_fingerprint(source), "faiss": edges, **settings.model_dump(mode="json")}
    with staging.staged_folder(out, spec) as folder:
        corpus = staging.prepare_corpus(source, folder, progress)
        if described.count != corpus.survey.passages:
            raise InputError(
                f"{published} has {described.count:,} vectors, {source} has {corpus.survey.passages:,} passages; "
                "give the corpus that was indexed"
            )
        store = PassageStore(corpus.path, folder)
        rows = sample_positions(len(store), vectors.SAMPLE)
        if sample := faiss_file.plain_vectors(described, rows):
            # Vectors of another encoder or in another order would be searched without any error.
            texts = [store[row].contents for row in rows]
            vectors.require_same_encoder(encoder, list(zip(texts, sample, strict=True)), published)
        flat = described.kind == "flat"
        if flat:
            faiss_file.import_flat(described.files, folder, progress)
        imported = Manifest(
            kind="dense" if flat else "ann",
            corpus=staging.corpus_stamp(corpus, folder, out),
            passages=described.count,
            documents=DocumentCounts.of(corpus.documents) if corpus.documents else None,
            counts={},
            encoder=settings,
            encoder_sha256=encoder.fingerprint,
            dimensions=described.dimensions,
            ann=None if flat else AnnSettings(method="hnsw" if described.kind == "hnsw" else "ivfpq"),
            faiss=() if flat else tuple(FileStamp.of(file, relative_path(file, out)) for file in described.files),
            libraries=manifest.library_versions(),
        )
        return staging.finish(imported, folder)


def load(
    folder: Path, *, verify: bool = False, device: str = "auto", rerank: str | None = None, depth: int = 10
) -> "IndexRetriever":
    """Open an index folder for search; `verify` hashes the whole corpus and index first.

    Dense search runs on `device`; the cross-encoder `rerank` rescores the best `depth` hits.
    """
    return IndexRetriever(*open_ranker(folder, verify=verify, device=device, rerank=rerank, depth=depth))


def open_ranker(
    folder: Path,
    *,
    verify: bool = False,
    device: str = "auto",
    rerank: str | None = None,
    depth: int = 10,
    rows: range | None = None,
) -> tuple[Ranker, PassageStore]:
    """Open the ranker and the passages of an index folder, as in `load`; `rows` are all that a dense index ranks."""
    described = manifest.read(folder)
    store = open_passages(folder, verify=verify)
    if len(store) != described.passages:
        raise InputError(
            f"{folder} has offsets of {len(store):,} passages, expected {described.passages:,}; build the index again"
        )
    rankers: list[Ranker] = []
    if described.bm25 is not None:
        rankers.append(BM25(folder / BM25_FOLDER, described.bm25, store.ranks))
    if described.encoder is not None:
        rankers.append(_dense_ranker(folder, described, store, device, rows or range(len(store))))
    ranker = rankers[0] if len(rankers) == 1 else Hybrid(rankers, store.ranks)
    if rerank is not None:
        from sleuth.retrieval.dense.encoder import load_cross_encoder

        ranker = Reranker(ranker, store, load_cross_encoder(rerank, device), depth)
    return ranker, store


def open_passages(folder: Path, *, verify: bool = False) -> PassageStore:
    """Open the passages of an index folder after checking its files; `verify` is as in `load`."""
    described = manifest.read(folder)
    manifest.verify_files(folder, described, full=verify)
    return PassageStore(manifest.verified_corpus(folder, described.corpus, full=verify), folder)


def _dense_ranker(folder: Path, described: Manifest, store: PassageStore, device: str, rows: range) -> Ranker:
    from sleuth.retrieval.dense.encoder import Encoder
    from sleuth.retrieval.dense.exact import Dense, ExactIndex, devices_for

    settings, dimensions = described.encoder, described.dimensions
    if settings is None or dimensions is None:
        raise InputError(f"{folder} names no encoder for its vectors; build the index again")
    encoder = Encoder.load(settings, device)
    require_same_weights(encoder, described, folder)
    if described.ann is not None:
        files = [manifest.verified_file(folder, stamp, "FAISS index") for stamp in described.faiss]
        rescore = described.ann.method == "ivfpq" and not files
        exact = vectors.open_vectors(folder, len(store), dimensions) if rescore else None
        index = faiss_file.open_index(files or [folder / ann.FILE])
        return ann.Ann(index, encoder.encode_queries, store.ranks, described.ann, exact)
    part = slice(rows.start, rows.stop)
    encoded = vectors.open_vectors(folder, len(store), dimensions)[part]
    exact_index = ExactIndex(encoded, store.ranks[part], devices_for(device, encoded.nbytes), unit=settings.normalise)
    return Dense(exact_index, encoder.encode_queries, rows.start)


def require_same_weights(encoder: "Encoder", described: Manifest, folder: Path) -> None:
    """Raise InputError if an index was built with other weights of its encoder."""
    if encoder.fingerprint != described.encoder_sha256:
        raise InputError(
            f"the weights of encoder {encoder.settings.model} differ from those {folder} was built with; "
            "restore that encoder or build the index again"
        )


class Hybrid:
    """Reciprocal rank fusion: a row at position p of a ranking scores 1 / (constant + p), summed over the rankings.

    Each ranking contributes its first `depth` rows, or `k` if larger. Up to that depth, the result for a smaller
    `k` is a prefix of that for a larger one. `id_order` breaks ties.
    """

    def __init__(
        self, rankers: Sequence[Ranker], id_order: NDArray[np.uint32], constant: int = RRF_CONSTANT, depth: int = 100
    ) -> None:
        self._rankers, self._id_order, self._constant, self._depth = tuple(rankers), id_order, constant, depth

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        depth = max(self._depth, k)
        rankings = [ranker.rank(queries, depth) for ranker in self._rankers]
        fused: list[Ranking] = []
        for of_query in zip(*rankings, strict=True):
            parts: defaultdict[int, list[float]] = defaultdict(list)
            for ranking in of_query:
                for position, (row, _) in enumerate(ranking, 1):
                    parts[row].append(1.0 / (self._constant + position))
            # fsum rounds once, so the same positions in different rankings give equal sums.
            sums = ((row, math.fsum(terms)) for row, terms in parts.items())
            fused.append(sorted(sums, key=lambda item: (-item[1], self._id_order[item[0]]))[:k])
        return fused


class Reranker:
    """Rescores the best `depth` rows of another ranker (or `k` if larger) with a cross-encoder."""

    def __init__(self, ranker: Ranker, store: PassageStore, scorer: "PairScorer", depth: int) -> None:
        self._ranker, self._store, self._scorer, self._depth = ranker, store, scorer, depth

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        candidates = [[row for row, _ in ranking] for ranking in self._ranker.rank(queries, max(k, self._depth))]
        paired = [query for query, rows in zip(queries, candidates, strict=True) for _ in rows]
        passages = [self._store[row].contents for rows in candidates for row in rows]
        scores = iter(self._scorer.score(paired, passages).tolist() if paired else [])
        rescored = [[(row, next(scores)) for row in rows] for rows in candidates]
        return [sorted(rows, key=lambda pair: (-pair[1], self._store.ranks[pair[0]]))[:k] for rows in rescored]


class IndexRetriever:
    """Retriever over one index. Searches run in a single thread, so a GPU is never used concurrently."""

    def __init__(self, ranker: Ranker, store: PassageStore) -> None:
        self._ranker, self._store = ranker, store
        self._thread = ThreadPoolExecutor(1, "search")
        weakref.finalize(self, self._thread.shutdown, wait=False)

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._search, list(queries), k)

    def _search(self, queries: list[str], k: int) -> list[SearchOutcome]:
        try:
            rankings = self._ranker.rank(queries, min(k, len(self._store)))
        except Exception as error:  # any failure is reported per query; the next call may succeed
            cause = f"{type(error).__name__}: {error}"
            return [SearchUnavailable(query, cause) for query in queries]
        return read_hits(self._store, queries, rankings)


def read_hits(store: PassageStore, queries: Sequence[str], rankings: Sequence[Ranking]) -> list[SearchOutcome]:
    """Read the passages of the rankings; a query whose passages cannot be read returns SearchUnavailable."""
    outcomes: list[SearchOutcome] = []
    for query, ranking in zip(queries, rankings, strict=True):
        try:
            outcomes.append([Hit(store[row], score) for row, score in ranking])
        except InputError as error:
            outcomes.append(SearchUnavailable(query, str(error)))
    return outcomes
