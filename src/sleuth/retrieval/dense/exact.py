"""Exact search among vectors: the rows with the highest inner products, in blocks, never all scores at once.

A fast pass finds candidates and a bound on everything else; the candidates are scored again in a way that does not
depend on batch or device; where the bound leaves a doubt, the pass is repeated with more candidates. Queries are
rounded to fp16 like the rows.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

SLACK = 4  # candidates beyond k: rounding in the fast pass rarely needs more
WIDEN = 8
BLOCK = 1 << 15  # rows multiplied at once on a CPU
RESIDENT = 1 << 29  # bytes of rows that are kept in fp32 on a CPU, for speed
BATCH = 512  # queries at once
ERROR = 1e-5  # of the fast pass, for rows and query of length one; measured below 1e-6

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows with their final scores; whatever is not among them scored at most `bound` in the fast pass."""

    rows: torch.Tensor
    scores: torch.Tensor
    bound: torch.Tensor


class Shard(Protocol):
    """Some rows on one device."""

    @property
    def device(self) -> torch.device: ...

    @property
    def ranks(self) -> torch.Tensor:
        """The place of each row in the order of ids, which decides between equal scores."""
        ...

    def candidates(self, queries: torch.Tensor, width: int) -> Candidates:
        """At least `width` candidates a query, or all rows where there are fewer."""
        ...


def nearest(shard: Shard, queries: NDArray[np.float32], k: int, longest: float = 1.0) -> tuple[Rows, Scores]:
    """The best `k` rows of the shard for each query with their scores; `longest` bounds the length of its rows."""
    k = min(k, len(shard.ranks))
    asked = torch.from_numpy(queries).to(shard.device, torch.float16)
    parts = [_nearest(shard, part, k, longest) for part in asked.split(BATCH)]
    rows, scores = (torch.cat(each) for each in zip(*parts, strict=True))
    return rows.cpu().numpy(), scores.cpu().numpy()


def merged(parts: list[tuple[Rows, Scores]], ranks: NDArray[np.uint32], k: int) -> tuple[Rows, Scores]:
    """The best `k` of what several shards found, rows counted over all of them."""
    if len(parts) == 1:
        return parts[0]
    rows, scores = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    order = np.lexsort((ranks[rows], -scores), axis=1)[:, :k]
    return np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)


def _nearest(shard: Shard, queries: torch.Tensor, k: int, longest: float) -> tuple[torch.Tensor, torch.Tensor]:
    room = ERROR * longest * queries.float().norm(dim=1).clamp(min=1e-30)
    rows, scores, sure = _attempt(shard, queries, k, k + SLACK, room)
    width = (k + SLACK) * WIDEN
    while not bool(sure.all()):
        doubtful = (~sure).nonzero().squeeze(1)
        more = _attempt(shard, queries[doubtful], k, width, room[doubtful])
        rows[doubtful], scores[doubtful], sure[doubtful] = more
        width *= WIDEN
    return rows, scores


def _attempt(
    shard: Shard, queries: torch.Tensor, k: int, width: int, room: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The best of some candidates, and for which queries no other row can be among them."""
    found = shard.candidates(queries, width)
    place = _keys(found, shard.ranks).topk(k, dim=1).indices
    rows, scores = found.rows.gather(1, place), found.scores.gather(1, place)
    # Where all rows are candidates there is no other, whatever the scores: damaged rows may have none.
    return rows, scores, (scores[:, -1] > found.bound + room) | (found.bound == -torch.inf)


def _keys(found: Candidates, ranks: torch.Tensor) -> torch.Tensor:
    """One integer for score and rank: a higher score is a higher key, and of equal scores the lower rank is."""
    # The bits of a float, read as an integer, are in the order of the floats once those of the negatives are turned.
    bits = (found.scores + 0.0).view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    rows = found.rows.clamp(max=len(ranks) - 1)
    return (ordered << 32) + (0x7FFFFFFF - ranks[rows].long())


class HostShard:
    """Rows in host memory or in a mapped file, multiplied in fp32: few are kept so, many are made so block by block."""

    def __init__(self, vectors: NDArray[np.float16], ranks: torch.Tensor) -> None:
        self.vectors = vectors
        self.ranks = ranks
        self._whole = _floats(vectors) if vectors.nbytes <= RESIDENT else None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def candidates(self, queries: torch.Tensor, width: int) -> Candidates:
        asked = queries.float()
        rows = torch.empty(len(asked), 0, dtype=torch.long)
        scores = torch.empty(len(asked), 0)
        for start in range(0, len(self.vectors), BLOCK):
            block = self._block(start)
            best = (asked @ block.T).topk(min(width, len(block)), dim=1)
            scores, rows = torch.cat([scores, best.values], 1), torch.cat([rows, best.indices + start], 1)
            if scores.shape[1] > width:
                kept = scores.topk(width, dim=1)
                scores, rows = kept.values, rows.gather(1, kept.indices)
        whole = rows.shape[1] == len(self.vectors)
        bound = torch.full((len(asked),), -torch.inf) if whole else scores.amin(dim=1)
        return Candidates(rows, self._scored(queries, rows), bound)

    def _block(self, start: int) -> torch.Tensor:
        if self._whole is not None:
            return self._whole[start : start + BLOCK]
        return _floats(self.vectors[start : start + BLOCK])

    def _scored(self, queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The scores of chosen rows, summed in fp64 so that neither batch nor order shows."""
        chosen = torch.from_numpy(self.vectors[rows.flatten().numpy()]).double().view(*rows.shape, -1)
        return (chosen * queries.double()[:, None]).sum(2).float()


def _floats(vectors: NDArray[np.float16]) -> torch.Tensor:
    # Made by numpy: torch complains of an array that it cannot write to, as one in a mapped file is.
    return torch.from_numpy(vectors.astype(np.float32))


class DeviceShard:
    """Rows in the memory of a GPU, searched by our Triton kernels; their columns may be filled up with zeros."""

    def __init__(self, vectors: torch.Tensor, ranks: torch.Tensor) -> None:
        self.vectors = vectors
        self.ranks = ranks

    @property
    def device(self) -> torch.device:
        return self.vectors.device

    def candidates(self, queries: torch.Tensor, width: int) -> Candidates:
        from sleuth.retrieval.dense import kernels

        asked = torch.nn.functional.pad(queries, (0, self.vectors.shape[1] - queries.shape[1]))
        maxima = kernels.group_maxima(self.vectors, asked)
        groups = maxima.shape[1]
        best = maxima.topk(min(width, groups), dim=1)
        scores = kernels.group_scores(self.vectors, asked, best.indices)
        within = torch.arange(kernels.GROUP, device=self.device)
        rows = (best.indices[:, :, None] * kernels.GROUP + within).flatten(1)
        whole = best.indices.shape[1] == groups
        bound = torch.full_like(best.values[:, -1], -torch.inf) if whole else best.values[:, -1]
        return Candidates(rows, scores, bound)
