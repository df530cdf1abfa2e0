"""Dense search: queries encoded and compared with every passage, on GPUs or on the CPU."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sleuth.errors import ConfigError
from sleuth.retrieval.dense.exact import BLOCK, DeviceShard, HostShard, Rows, Scores, Shard, merged, nearest
from sleuth.retrieval.dense.network import devices
from sleuth.retrieval.retriever import Ranking

SPARE = 1 << 30  # bytes of a GPU that a search may need beside the rows
COLUMNS = 8  # on a GPU the columns are filled up to a multiple: rows are loaded from 16-byte borders

Encode = Callable[[list[str]], NDArray[np.float32]]


class Index(Protocol):
    """Finds the rows nearest to vectors."""

    def nearest(self, queries: NDArray[np.float32], k: int) -> tuple[Rows, Scores]: ...


class Vectors:
    """All passages as vectors, cut into one shard a device; rows are searched where they lie."""

    def __init__(
        self, vectors: NDArray[np.float16], ranks: NDArray[np.uint32], devices: Sequence[str], *, unit: bool = True
    ) -> None:
        self._ranks = ranks
        self._longest = 1.001 if unit else _longest(vectors)
        self._starts = _starts(len(vectors), len(devices))
        ends = [*self._starts[1:], len(vectors)]
        spans = zip(self._starts, ends, devices[: len(ends)], strict=True)
        self._shards = [_shard(vectors[a:b], ranks[a:b], torch.device(device)) for a, b, device in spans]
        self._pool = ThreadPoolExecutor(len(self._shards), "shard")

    def nearest(self, queries: NDArray[np.float32], k: int) -> tuple[Rows, Scores]:
        """The best `k` rows of each query, best first, equal scores by rank; exact."""
        found = self._pool.map(lambda shard: nearest(shard, queries, k, self._longest), self._shards)
        parts = [(rows + start, scores) for start, (rows, scores) in zip(self._starts, found, strict=True)]
        return merged(parts, self._ranks, k)


class Dense:
    """A ranker over encoded passages; a blank query finds nothing, any other finds `k` rows."""

    def __init__(self, index: Index, encode: Encode) -> None:
        self._index = index
        self._encode = encode

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """See Ranker."""
        asked = [query for query in queries if query.strip()]
        if not asked:
            return [[] for _ in queries]
        rows, scores = self._index.nearest(self._encode(asked), k)
        found = iter(zip(rows.tolist(), scores.tolist(), strict=True))
        return [list(zip(*next(found), strict=True)) if query.strip() else [] for query in queries]


def devices_for(wanted: str, size: int) -> list[str]:
    """The devices of a setting that hold so many bytes of rows; auto takes the CPU where the GPUs are too small."""
    chosen = devices(wanted)
    gpus = [device for device in chosen if device != "cpu"]
    free = sum(max(0, torch.cuda.mem_get_info(device)[0] - SPARE) for device in gpus)
    if not gpus or size <= free:
        return chosen
    if wanted == "auto":
        return ["cpu"]
    raise ConfigError(
        f"the vectors need {size / 2**30:.1f} GiB and {', '.join(gpus)} have {free / 2**30:.1f} GiB to spare; "
        "choose cpu, or more GPUs"
    )


def _starts(rows: int, shards: int) -> list[int]:
    """Where each shard begins, all but the last of one size."""
    size = -(-rows // shards)
    return [min(rows, size * n) for n in range(shards) if n == 0 or size * n < rows]


def _shard(vectors: NDArray[np.float16], ranks: NDArray[np.uint32], device: torch.device) -> Shard:
    order = torch.from_numpy(ranks.astype(np.int32)).to(device)
    if device.type == "cpu":
        return HostShard(vectors, order)
    rows, columns = vectors.shape
    placed = torch.zeros(rows, columns + -columns % COLUMNS, dtype=torch.float16, device=device)
    for start in range(0, rows, BLOCK):
        block = torch.from_numpy(np.array(vectors[start : start + BLOCK]))  # a copy: a mapped file is not writable
        placed[start : start + BLOCK, :columns] = block.to(device)
    return DeviceShard(placed, order)


def _longest(vectors: NDArray[np.float16]) -> float:
    """The length of the longest row."""
    blocks = (vectors[start : start + BLOCK].astype(np.float32) for start in range(0, len(vectors), BLOCK))
    return max(float(np.linalg.norm(block, axis=1).max()) for block in blocks)
