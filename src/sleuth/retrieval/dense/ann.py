"""Approximate search with FAISS: a graph of vectors (HNSW), or inverted lists of compressed vectors (IVF-PQ).

Suffixes: _ND corpus vectors, _QD query vectors, _QK candidates of all queries, _K candidates of one query.
"""

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.config.retrieval import AnnSettings
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError, UserError
from sleuth.retrieval.retriever import Ranking
from sleuth.runs.atomic import atomic_write

FILE = "ann.faiss"
BLOCK = 1 << 13
SAVE_EVERY = 256 * BLOCK
SEED = 17
# efConstruction. With 54,538 passages encoded by MiniLM, recall@10 at effort 128 was 0.991 with FAISS's default of 40,
# 0.997 with 80 in twice the time, 0.998 with 200.
EF_CONSTRUCTION = 80
# FAISS wants 39 training points per centroid; each byte of a compressed vector has 256 centroids.
MIN_POINTS, POINTS, CENTROIDS = 39, 64, 256
# Extra candidates, so that equal scores can be ordered by id. If more passages than these tie at the cut, or the
# search misses some, FAISS decides between them: deterministically, but not by id.
SLACK = 32
# Number of IVF candidates to rescore: with 50,000 vectors of 64 bytes recall@10 rose from 0.63 to 0.94.
RESCORED = 256

Vectors = NDArray[np.float16]
Encode = Callable[[list[str]], NDArray[np.float32]]
Candidates = tuple[NDArray[np.float32], NDArray[np.int64]]  # scores and rows


def build(
    vectors_ND: Vectors, out: Path, settings: AnnSettings, progress: Progress = silent, save_every: int = SAVE_EVERY
) -> dict[str, int]:
    """Write a FAISS index of the vectors into the folder `out`; return its parameters.

    The file does not depend on threads or interruptions. A build saves its state every `save_every` vectors, a multiple
    of BLOCK, and resumes from there.
    """
    chosen = _choose_parameters(vectors_ND, settings)
    # The name contains all inputs, so a build never resumes with other vectors, settings or versions.
    made_of = (vectors_ND.shape, settings.model_dump(exclude={"effort"}), library().__version__)
    edges = vectors_ND[:BLOCK].tobytes() + vectors_ND[-BLOCK:].tobytes()
    unfinished = out / f"{FILE}.{hashlib.sha256(repr(made_of).encode() + edges).hexdigest()[:12]}"
    index = library().read_index(str(unfinished)) if unfinished.exists() else _new_index(vectors_ND, chosen, progress)
    is_graph = hasattr(index, "hnsw")
    if is_graph:
        # Allocate the memory of all vectors at once: growing it step by step may need twice as much.
        storage = library().downcast_index(index.storage)
        held = storage.codes.size()
        storage.codes.resize(len(vectors_ND) * storage.code_size)
        storage.codes.resize(held)
    for start in range(index.ntotal, len(vectors_ND), BLOCK):
        progress("linking vectors", start, len(vectors_ND))
        if is_graph:
            # FAISS does not save the state of the generator that draws levels, so it is seeded anew for every block.
            index.hnsw.rng = library().RandomGenerator(SEED + index.ntotal)
        index.add(vectors_ND[start : start + BLOCK].astype(np.float32))
        if index.ntotal % save_every == 0:
            _write(index, unfinished)
    progress("linking vectors", len(vectors_ND), len(vectors_ND))
    _write(index, out / FILE)
    for leftover in out.glob(f"{FILE}.*"):
        leftover.unlink()
    return chosen


class Ann:
    """Ranker over a FAISS index, built here or imported; `id_order` breaks ties.

    Candidates from inverted lists are scored by their compressed vectors, and rescored if `vectors_ND` is given.
    """

    def __init__(
        self,
        index: Any,
        encode: Encode,
        id_order: NDArray[np.uint32],
        settings: AnnSettings,
        vectors_ND: Vectors | None = None,
    ) -> None:
        if index.ntotal != len(id_order):
            raise InputError(
                f"the FAISS index has {index.ntotal:,} vectors and the corpus {len(id_order):,} passages; "
                "expected one vector per passage, in the order of the corpus"
            )
        self._index, self._encode, self._id_order, self._effort = index, encode, id_order, settings.effort
        self._vectors_ND = vectors_ND
        # Distances are negated to get scores.
        self._sign = 1 if index.metric_type == library().METRIC_INNER_PRODUCT else -1
        self._pool = ThreadPoolExecutor(os.cpu_count(), "ann", library().omp_set_num_threads, (1,))

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        rankings: list[Ranking] = [[] for _ in queries]
        places = [place for place, query in enumerate(queries) if query.strip()]
        if not places:
            return rankings
        vectors_QD = np.ascontiguousarray(self._encode([queries[place] for place in places]), np.float32)
        if vectors_QD.shape[1] != self._index.d:
            raise InputError(
                f"the encoder produces {vectors_QD.shape[1]} dimensions, the FAISS index has {self._index.d}; "
                "use the encoder that the index was built with"
            )
        depth = min(k + SLACK, self._index.ntotal)
        if hasattr(self._index, "hnsw"):
            # All candidates of the graph walk: they cost nothing extra, and results do not depend on k.
            self._index.hnsw.efSearch = depth = max(self._effort, depth)
            scores_QK, rows_QK = self._index.search(vectors_QD, depth)
            candidates: Iterable[Candidates] = zip(self._sign * scores_QK, rows_QK, strict=True)
        else:
            # One query at a time: FAISS uses BLAS for several, and its rounding depends on their number.
            self._index.nprobe = min(self._effort, self._index.nlist)
            candidates = self._pool.map(lambda query_D: self._search_lists(query_D, depth), vectors_QD)
        for place, (scores_K, rows_K) in zip(places, candidates, strict=True):
            found = rows_K >= 0  # FAISS fills unused entries with row -1
            scores_K, rows_K = scores_K[found], rows_K[found]
            if rows_K.max(initial=0) >= len(self._id_order):
                raise InputError(
                    f"the FAISS index returned row {rows_K.max()}, the corpus has {len(self._id_order):,} passages; "
                    "expected an index whose ids are row numbers"
                )
            order = np.lexsort((self._id_order[rows_K], -scores_K))[:k]
            rankings[place] = list(zip(rows_K[order].tolist(), scores_K[order].tolist(), strict=True))
        return rankings

    def _search_lists(self, query_D: NDArray[np.float32], depth: int) -> Candidates:
        if self._vectors_ND is None:
            (scores_K,), (rows_K,) = self._index.search(query_D[None], depth)
            return self._sign * scores_K, rows_K
        _, (rows_K,) = self._index.search(query_D[None], max(depth, RESCORED))
        rows_K = rows_K[rows_K >= 0]
        # Summed row by row: the rounding of a matrix product would depend on the number of rows.
        return np.einsum("kd,d->k", self._vectors_ND[rows_K].astype(np.float32), query_D), rows_K


def read(source: Path | Callable[[int], bytes]) -> Any:
    """Open an index for search: a file, which is memory-mapped, or a function that reads the next `n` bytes.

    Raises InputError if FAISS cannot read the index, or if its type is neither HNSW nor IVF.
    """
    faiss = library()
    try:
        if isinstance(source, Path):
            index = faiss.read_index(str(source), faiss.IO_FLAG_MMAP_IFC)
        else:
            index = faiss.read_index(faiss.PyCallbackIOReader(source))
    except RuntimeError as error:
        # Drop the C++ function and line that FAISS puts first.
        reason = re.sub(r"^Error in .*?:\d+: (Error: '.*?' failed:? ?)?", "", str(error), flags=re.DOTALL)
        name = source if isinstance(source, Path) else "the FAISS index"
        raise InputError(f"{name} is damaged or truncated ({reason or error}); build or download it again") from error
    if not (hasattr(index, "hnsw") or hasattr(index, "nprobe")):
        raise InputError(f"the FAISS index is of type {type(index).__name__}, expected HNSW or IVF; convert the index")
    return index


def stored_vectors(path: Path) -> Vectors:
    """Return the vectors that an HNSW index built here stores, in the order of its rows."""
    index = read(path)
    vectors: Vectors = index.reconstruct_n(0, index.ntotal).astype(np.float16)
    return vectors


def library() -> Any:
    """Import FAISS on first use."""
    try:
        import faiss
    except ImportError as error:
        raise UserError("faiss is not installed, although Sleuth requires it; pip install faiss-cpu") from error
    return faiss


def _choose_parameters(vectors_ND: Vectors, settings: AnnSettings) -> dict[str, int]:
    if settings.method == "hnsw":
        return {"links": settings.links}
    count, dimensions = vectors_ND.shape
    lists = settings.lists or max(1, min(4 * math.isqrt(count), count // MIN_POINTS))
    if count < max(CENTROIDS, lists):
        raise InputError(
            f"{count} passages are too few for ivfpq with {lists} lists, expected at least {max(CENTROIDS, lists)}; "
            "use fewer lists, or hnsw"
        )
    divisors = [width for width in range(1, dimensions + 1) if dimensions % width == 0]
    return {"lists": lists, "bytes": min(divisors, key=lambda width: (abs(width - settings.bytes), -width))}


def _new_index(vectors_ND: Vectors, chosen: dict[str, int], progress: Progress) -> Any:
    """Create an empty index; IVF centroids are trained on a sample."""
    # "SQfp16": the vectors have half precision, so nothing is lost and the index is half as large. "np" skips the
    # polysemous training, which takes most of the time and serves another search mode.
    is_graph = "links" in chosen
    description = f"HNSW{chosen['links']},SQfp16" if is_graph else f"IVF{chosen['lists']},PQ{chosen['bytes']}np"
    index = library().index_factory(vectors_ND.shape[1], description, library().METRIC_INNER_PRODUCT)
    if is_graph:
        index.hnsw.efConstruction = EF_CONSTRUCTION
        return index
    # Avoids a warning on stderr per byte for a small corpus.
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    progress("training lists", 0, 0)
    rows = np.random.default_rng(SEED).permutation(len(vectors_ND))[: POINTS * max(chosen["lists"], CENTROIDS)]
    index.train(vectors_ND[np.sort(rows)].astype(np.float32))
    return index


def _write(index: Any, path: Path) -> None:
    with atomic_write(path) as temporary:
        library().write_index(index, str(temporary))
