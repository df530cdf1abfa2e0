"""Approximate search by FAISS: a graph over the vectors (HNSW), or inverted lists of compressed ones (IVF-PQ).

Suffixes: _ND the vectors of the corpus, _QD those of the queries, _QK their candidates, _K the candidates of one.
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
# Candidates among which a graph looks for links. With 54,538 passages encoded by MiniLM, recall@10 at effort 128 was
# 0.991 with 40 as is FAISS's own, 0.997 with 80 for twice the time, 0.998 with 200.
BREADTH = 80
# FAISS asks for 39 points to train a centroid by; each byte of a compressed vector has 256 centroids.
LEAST_POINTS, POINTS, CENTROIDS = 39, 64, 256
# Equal scores are put in order among the candidates of FAISS, so it is asked for more than are wanted. Where more
# passages than these share the score at the cut, or the search does not reach all of them, it is FAISS that chooses
# among them: always the same ones, but not by their ids.
SLACK = 32
# Candidates from lists that are scored again: for 50,000 vectors of 64 bytes that took recall@10 from 0.63 to 0.94.
SCORED_AGAIN = 256

Vectors = NDArray[np.float16]
Encode = Callable[[list[str]], NDArray[np.float32]]
Candidates = tuple[NDArray[np.float32], NDArray[np.int64]]  # scores and rows


def build(
    vectors_ND: Vectors, out: Path, settings: AnnSettings, progress: Progress = silent, save_every: int = SAVE_EVERY
) -> dict[str, int]:
    """Writes the index of the vectors into the folder `out`; returns what was chosen for it, by name.

    The same vectors give the same bytes, with any number of threads and however often the build was interrupted: it
    goes on from the unfinished index, which is saved every `save_every` vectors, a multiple of BLOCK.
    """
    chosen = _chosen(vectors_ND, settings)
    unfinished = out / f"{FILE}.{_fingerprint(vectors_ND, settings)}"
    index = library().read_index(str(unfinished)) if unfinished.exists() else _trained(vectors_ND, chosen, progress)
    _reserve(index, len(vectors_ND))
    for start in range(index.ntotal, len(vectors_ND), BLOCK):
        progress("linking vectors", start, len(vectors_ND))
        _add(index, vectors_ND[start : start + BLOCK])
        if index.ntotal % save_every == 0:
            _write(index, unfinished)
    progress("linking vectors", len(vectors_ND), len(vectors_ND))
    _write(index, out / FILE)
    for leftover in out.glob(f"{FILE}.*"):
        leftover.unlink()
    return chosen


class Ann:
    """A ranker over an index of FAISS, built here or published; `ranks` orders its rows by passage id.

    What is found in lists is scored by its compressed vectors; where `vectors_ND` are given, again by these.
    """

    def __init__(
        self,
        index: Any,
        encode: Encode,
        ranks: NDArray[np.uint32],
        settings: AnnSettings,
        vectors_ND: Vectors | None = None,
    ) -> None:
        if index.ntotal != len(ranks):
            raise InputError(
                f"the FAISS index holds {index.ntotal:,} vectors and the corpus {len(ranks):,} passages; "
                "expected a vector a passage, in the order of the corpus"
            )
        self._index, self._encode, self._ranks, self._effort = index, encode, ranks, settings.effort
        self._vectors_ND = vectors_ND
        # The score of a distance is its negative.
        self._sign = 1 if index.metric_type == library().METRIC_INNER_PRODUCT else -1
        self._candidates = self._in_graph if hasattr(index, "hnsw") else self._in_lists
        self._pool = ThreadPoolExecutor(os.cpu_count(), "ann", library().omp_set_num_threads, (1,))

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """The `k` best rows that FAISS finds for each query; a blank query has none."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        ranked: list[Ranking] = [[] for _ in queries]
        asked = [place for place, query in enumerate(queries) if query.strip()]
        if asked:
            vectors_QD = self._encoded([queries[place] for place in asked])
            candidates = self._candidates(vectors_QD, min(k + SLACK, self._index.ntotal))
            for place, (scores_K, rows_K) in zip(asked, candidates, strict=True):
                ranked[place] = self._ordered(scores_K, rows_K)[:k]
        return ranked

    def _encoded(self, queries: list[str]) -> NDArray[np.float32]:
        vectors_QD = np.ascontiguousarray(self._encode(queries), np.float32)
        if vectors_QD.shape[1] != self._index.d:
            raise InputError(
                f"the encoder gives {vectors_QD.shape[1]} dimensions and the FAISS index has {self._index.d}; "
                "use the encoder that the index was built with"
            )
        return vectors_QD

    def _in_graph(self, vectors_QD: NDArray[np.float32], depth: int) -> Iterable[Candidates]:
        """All that the walk through the graph keeps: they come free, and a smaller k then finds no other rows."""
        self._index.hnsw.efSearch = depth = max(self._effort, depth)
        scores_QK, rows_QK = self._index.search(vectors_QD, depth)
        return zip(self._sign * scores_QK, rows_QK, strict=True)

    def _in_lists(self, vectors_QD: NDArray[np.float32], depth: int) -> Iterable[Candidates]:
        """Each query alone: FAISS compares several with the lists by BLAS, whose rounding depends on how many."""
        self._index.nprobe = min(self._effort, self._index.nlist)
        return self._pool.map(lambda query_D: self._in_lists_of(query_D, depth), vectors_QD)

    def _in_lists_of(self, query_D: NDArray[np.float32], depth: int) -> Candidates:
        if self._vectors_ND is None:
            (scores_K,), (rows_K,) = self._index.search(query_D[None], depth)
            return self._sign * scores_K, rows_K
        _, (rows_K,) = self._index.search(query_D[None], max(depth, SCORED_AGAIN))
        rows_K = rows_K[rows_K >= 0]
        # Summed row by row: a product of matrices would round by how many rows there are.
        return np.einsum("kd,d->k", self._vectors_ND[rows_K].astype(np.float32), query_D), rows_K

    def _ordered(self, scores_K: NDArray[np.float32], rows_K: NDArray[np.int64]) -> Ranking:
        """Best first, without the places FAISS left empty."""
        scores_K, rows_K = scores_K[rows_K >= 0], rows_K[rows_K >= 0]
        if rows_K.max(initial=0) >= len(self._ranks):
            raise InputError(
                f"the FAISS index names row {rows_K.max()} and the corpus has {len(self._ranks):,} passages; "
                "expected an index whose ids are row numbers"
            )
        order = np.lexsort((self._ranks[rows_K], -scores_K))
        return list(zip(rows_K[order].tolist(), scores_K[order].tolist(), strict=True))


def read(source: Path | Callable[[int], bytes]) -> Any:
    """An index to search in, held once: a file is mapped; a function gives the next bytes, at most so many.

    What FAISS cannot read, or is neither a graph nor inverted lists, is an InputError.
    """
    faiss = library()
    try:
        if isinstance(source, Path):
            index = faiss.read_index(str(source), faiss.IO_FLAG_MMAP_IFC)
        else:
            index = faiss.read_index(faiss.PyCallbackIOReader(source))
    except RuntimeError as error:
        name = source if isinstance(source, Path) else "the FAISS index"
        raise InputError(f"{name} is damaged or cut short ({_reason(error)}); build or fetch it again") from error
    if not (hasattr(index, "hnsw") or hasattr(index, "nprobe")):
        raise InputError(f"the FAISS index is of type {type(index).__name__}, expected HNSW or IVF; convert it")
    return index


def library() -> Any:
    """FAISS, loaded where it is first needed."""
    try:
        import faiss
    except ImportError as error:
        raise UserError("faiss is not installed, though Sleuth depends on it; pip install faiss-cpu") from error
    return faiss


def _chosen(vectors_ND: Vectors, settings: AnnSettings) -> dict[str, int]:
    """The numbers that shape the index, within what the vectors allow."""
    if settings.method == "hnsw":
        return {"links": settings.links}
    count, dimensions = vectors_ND.shape
    lists = settings.lists or max(1, min(4 * math.isqrt(count), count // LEAST_POINTS))
    if count < max(CENTROIDS, lists):
        raise InputError(
            f"{count} passages are too few for ivfpq with {lists} lists, expected at least {max(CENTROIDS, lists)}; "
            "choose fewer lists, or hnsw"
        )
    divisors = [width for width in range(1, dimensions + 1) if dimensions % width == 0]
    return {"lists": lists, "bytes": min(divisors, key=lambda width: (abs(width - settings.bytes), -width))}


def _trained(vectors_ND: Vectors, chosen: dict[str, int], progress: Progress) -> Any:
    """An empty index, its centroids trained on a sample where it has any."""
    faiss = library()
    if "links" in chosen:
        # Half precision is what the vectors have: nothing is lost, and the index is half as large.
        index = faiss.index_factory(vectors_ND.shape[1], f"HNSW{chosen['links']},SQfp16", faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = BREADTH
        return index
    # "np" leaves out a training that serves another way of searching and takes most of the time.
    description = f"IVF{chosen['lists']},PQ{chosen['bytes']}np"
    index = faiss.index_factory(vectors_ND.shape[1], description, faiss.METRIC_INNER_PRODUCT)
    # A small corpus has fewer points than FAISS likes, and it would say so on stderr once a byte.
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    progress("training lists", 0, 0)
    index.train(_sample(vectors_ND, max(POINTS * chosen["lists"], POINTS * CENTROIDS)))
    return index


def _sample(vectors_ND: Vectors, size: int) -> NDArray[np.float32]:
    rows = np.random.default_rng(SEED).permutation(len(vectors_ND))[:size]
    return vectors_ND[np.sort(rows)].astype(np.float32)


def _reserve(index: Any, count: int) -> None:
    """Takes the memory for the vectors of a graph at once: grown step by step, they would be there twice at times."""
    if hasattr(index, "hnsw"):
        storage = library().downcast_index(index.storage)
        held = storage.codes.size()
        storage.codes.resize(count * storage.code_size)
        storage.codes.resize(held)


def _add(index: Any, vectors_ND: Vectors) -> None:
    if hasattr(index, "hnsw"):
        # The levels are drawn from a generator whose state FAISS does not save: begun anew for every block, they are
        # the same in a build that was interrupted.
        index.hnsw.rng = library().RandomGenerator(SEED + index.ntotal)
    index.add(vectors_ND.astype(np.float32))


def _write(index: Any, path: Path) -> None:
    with atomic_write(path) as temporary:
        library().write_index(index, str(temporary))


def _fingerprint(vectors_ND: Vectors, settings: AnnSettings) -> str:
    """A name for the unfinished index, so that it is never continued with other vectors, settings or versions."""
    made_of = (vectors_ND.shape, settings.model_dump(exclude={"effort"}), library().__version__)
    edges = vectors_ND[:BLOCK].tobytes() + vectors_ND[-BLOCK:].tobytes()
    return hashlib.sha256(repr(made_of).encode() + edges).hexdigest()[:12]


def _reason(error: RuntimeError) -> str:
    """What FAISS says is wrong, without the function and line of its own that come first."""
    return re.sub(r"^Error in .*?:\d+: (Error: '.*?' failed:? ?)?", "", str(error), flags=re.DOTALL) or str(error)
