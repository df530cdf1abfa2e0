"""Exact dense search: every passage is scored, in blocks, on GPUs or on the CPU.

A fast pass finds candidates and an upper bound for all other rows. The candidates are rescored independently of batch
and device. If the bound is not conclusive, the pass is repeated with more candidates. Queries are rounded to fp16 like
the rows.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sleuth.errors import ConfigError
from sleuth.retrieval.retriever import Ranking

SLACK = 4  # candidates beyond k; rounding in the fast pass rarely needs more
WIDEN = 8
BLOCK = 1 << 15  # rows multiplied at once on a CPU
RESIDENT = 1 << 29  # bytes of rows kept in fp32 on a CPU, for speed
BATCH = 512  # queries at once
ERROR = 1e-5  # error of the fast pass for unit vectors; measured below 1e-6
RESERVED = 1 << 30  # bytes of GPU memory that a search may need besides the rows
COLUMNS = 8  # columns are padded to a multiple on a GPU: rows must be aligned to 16 bytes

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]
Encode = Callable[[list[str]], NDArray[np.float32]]


class Dense:
    """Ranker over encoded passages, whose first one is row `first`; every non-blank query returns `k` rows."""

    def __init__(self, index: "ExactIndex", encode: Encode, first: int = 0) -> None:
        self._index, self._encode, self._first = index, encode, first

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        texts = [query for query in queries if query.strip()]
        if not texts:
            return [[] for _ in queries]
        rows, scores = self._index.nearest(self._encode(texts), k)
        found = iter(zip((rows + self._first).tolist(), scores.tolist(), strict=True))
        return [list(zip(*next(found), strict=True)) if query.strip() else [] for query in queries]


class ExactIndex:
    """The vectors of all passages, divided into one shard per device; `id_order` breaks ties."""

    def __init__(
        self, vectors: NDArray[np.float16], id_order: NDArray[np.uint32], devices: Sequence[str], *, unit: bool = True
    ) -> None:
        self._id_order = id_order
        blocks = (vectors[start : start + BLOCK].astype(np.float32) for start in range(0, len(vectors), BLOCK))
        self._max_norm = 1.001 if unit else max(float(np.linalg.norm(block, axis=1).max()) for block in blocks)
        size = -(-len(vectors) // len(devices))
        self._starts = [n * size for n in range(len(devices)) if n == 0 or n * size < len(vectors)]
        self._shards = [
            _shard(vectors[start : start + size], id_order[start : start + size], torch.device(device))
            for start, device in zip(self._starts, devices, strict=False)
        ]
        self._pool = ThreadPoolExecutor(len(self._shards), "shard")

    def nearest(self, queries: NDArray[np.float32], k: int) -> tuple[Rows, Scores]:
        """Return the best `k` rows for each query, best first, ties by id."""
        found = self._pool.map(lambda shard: nearest(shard, queries, k, self._max_norm), self._shards)
        parts = [(rows + start, scores) for start, (rows, scores) in zip(self._starts, found, strict=True)]
        if len(parts) == 1:
            return parts[0]
        rows, scores = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
        order = np.lexsort((self._id_order[rows], -scores), axis=1)[:, :k]
        return np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)


def devices(wanted: str | None) -> list[str]:
    """Return the devices of a setting: auto, cpu, cuda (all GPUs) or a list such as cuda:0,cuda:1."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if wanted in (None, "auto"):
        return gpus or ["cpu"]
    chosen = gpus if wanted == "cuda" else [place.strip() for place in str(wanted).split(",")]
    if not chosen or set(chosen) - {"cpu", *gpus}:
        raise ConfigError(f"device = {wanted!r} is not available; choose from {', '.join(['cpu', *gpus])}")
    return chosen


def devices_for(wanted: str, size: int) -> list[str]:
    """Return the devices of a setting; auto falls back to the CPU if the GPUs cannot hold `size` bytes of rows."""
    chosen = devices(wanted)
    gpus = [device for device in chosen if device != "cpu"]
    free = sum(max(0, torch.cuda.mem_get_info(device)[0] - RESERVED) for device in gpus)
    if not gpus or size <= free:
        return chosen
    if wanted == "auto":
        return ["cpu"]
    raise ConfigError(
        f"the vectors need {size / 2**30:.1f} GiB, but {', '.join(gpus)} have {free / 2**30:.1f} GiB free; "
        "use device cpu or more GPUs"
    )


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows with their final scores; all other rows scored at most `bound` in the fast pass."""

    rows: torch.Tensor
    scores: torch.Tensor
    bound: torch.Tensor


class HostShard:
    """Rows in host memory or a mapped file, multiplied in fp32; small shards are kept in fp32."""

    def __init__(self, vectors: NDArray[np.float16], id_order: torch.Tensor) -> None:
        self.vectors, self.id_order = vectors, id_order
        self.device = torch.device("cpu")
        self._resident = _to_float32(vectors) if vectors.nbytes <= RESIDENT else None

    def candidates(self, queries: torch.Tensor, width: int) -> Candidates:
        """At least `width` candidates per query, or all rows if there are fewer."""
        asked = queries.float()
        rows = torch.empty(len(asked), 0, dtype=torch.long)
        scores = torch.empty(len(asked), 0)
        for start in range(0, len(self.vectors), BLOCK):
            resident, end = self._resident, start + BLOCK
            block = _to_float32(self.vectors[start:end]) if resident is None else resident[start:end]
            best = (asked @ block.T).topk(min(width, len(block)), dim=1)
            scores, rows = torch.cat([scores, best.values], 1), torch.cat([rows, best.indices + start], 1)
            if scores.shape[1] > width:
                kept = scores.topk(width, dim=1)
                scores, rows = kept.values, rows.gather(1, kept.indices)
        all_rows = rows.shape[1] == len(self.vectors)
        bound = torch.full((len(asked),), -torch.inf) if all_rows else scores.amin(dim=1)
        # Rescored in fp64, so that neither batch nor order affects the result.
        chosen = torch.from_numpy(self.vectors[rows.flatten().numpy()]).double().view(*rows.shape, -1)
        return Candidates(rows, (chosen * queries.double()[:, None]).sum(2).float(), bound)


def _to_float32(vectors: NDArray[np.float16]) -> torch.Tensor:
    # Converted by numpy: torch warns about read-only arrays, such as a mapped file.
    return torch.from_numpy(vectors.astype(np.float32))


class DeviceShard:
    """Rows in GPU memory, searched by Triton kernels; columns may be zero-padded."""

    def __init__(self, vectors: torch.Tensor, id_order: torch.Tensor) -> None:
        self.vectors, self.id_order, self.device = vectors, id_order, vectors.device

    def candidates(self, queries: torch.Tensor, width: int) -> Candidates:
        """At least `width` candidates per query, or all rows if there are fewer."""
        from sleuth.retrieval.dense import kernels

        padded = torch.nn.functional.pad(queries, (0, self.vectors.shape[1] - queries.shape[1]))
        maxima = kernels.group_maxima(self.vectors, padded)
        best = maxima.topk(min(width, maxima.shape[1]), dim=1)
        scores = kernels.group_scores(self.vectors, padded, best.indices)
        within = torch.arange(kernels.GROUP, device=self.device)
        rows = (best.indices[:, :, None] * kernels.GROUP + within).flatten(1)
        all_rows = best.indices.shape == maxima.shape
        bound = torch.full_like(best.values[:, -1], -torch.inf) if all_rows else best.values[:, -1]
        return Candidates(rows, scores, bound)


Shard = HostShard | DeviceShard  # `id_order` is the position of each row in the order of ids, which breaks ties


def _shard(vectors: NDArray[np.float16], id_order: NDArray[np.uint32], device: torch.device) -> Shard:
    order = torch.from_numpy(id_order.astype(np.int32)).to(device)
    if device.type == "cpu":
        return HostShard(vectors, order)
    rows, columns = vectors.shape
    placed = torch.zeros(rows, columns + -columns % COLUMNS, dtype=torch.float16, device=device)
    for start in range(0, rows, BLOCK):
        block = torch.from_numpy(np.array(vectors[start : start + BLOCK]))  # a copy: a mapped file is read-only
        placed[start : start + BLOCK, :columns] = block.to(device)
    return DeviceShard(placed, order)


def nearest(shard: Shard, queries: NDArray[np.float32], k: int, max_norm: float = 1.0) -> tuple[Rows, Scores]:
    """Return the best `k` rows of a shard for each query; `max_norm` bounds the norm of its rows."""
    k = min(k, len(shard.id_order))
    asked = torch.from_numpy(queries).to(shard.device, torch.float16)
    parts = []
    for part in asked.split(BATCH):
        margin = ERROR * max_norm * part.float().norm(dim=1).clamp(min=1e-30)
        rows, scores, certain = _attempt(shard, part, k, k + SLACK, margin)
        width = (k + SLACK) * WIDEN
        while not bool(certain.all()):
            doubtful = (~certain).nonzero().squeeze(1)
            retried = _attempt(shard, part[doubtful], k, width, margin[doubtful])
            rows[doubtful], scores[doubtful], certain[doubtful] = retried
            width *= WIDEN
        parts.append((rows, scores))
    rows, scores = (torch.cat(each) for each in zip(*parts, strict=True))
    return rows.cpu().numpy(), scores.cpu().numpy()


def _attempt(
    shard: Shard, queries: torch.Tensor, k: int, width: int, margin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the best `k` candidates, and whether each query's candidates are certain to be its best rows."""
    found = shard.candidates(queries, width)
    # One integer key for score and id. Read as an integer, a float sorts correctly once the bits of negatives are
    # flipped; of equal scores the earlier id has the higher key.
    bits = (found.scores + 0.0).view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    positions = shard.id_order[found.rows.clamp(max=len(shard.id_order) - 1)].long()
    best = ((ordered << 32) + (0x7FFFFFFF - positions)).topk(k, dim=1).indices
    rows, scores = found.rows.gather(1, best), found.scores.gather(1, best)
    # If all rows are candidates there is no other row, even if damaged rows have no comparable score.
    return rows, scores, (scores[:, -1] > found.bound + margin) | (found.bound == -torch.inf)
