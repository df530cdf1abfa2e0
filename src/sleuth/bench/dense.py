"""Exact dense search against a plain matrix product with top-k, side by side on one device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from sleuth.retrieval.dense.exact import DeviceShard, HostShard, Shard, nearest

CHUNK = 1 << 20
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """One batch size: milliseconds of a search, ours and the plain way, and how many hits differ from brute force."""

    batch: int
    ours: float
    plain: float
    differing: int

    @property
    def rate(self) -> float:
        """Queries a second, ours."""
        return 1e3 * self.batch / self.ours

    @property
    def ratio(self) -> float:
        return self.plain / self.ours


def compare(rows: int, dimensions: int, k: int, batches: Sequence[int], device: str) -> list[Timing]:
    """Times both on random unit vectors; hits are held against products in fp32."""
    vectors = _unit(rows, dimensions, device)
    shard = _shard(vectors)
    return [_timing(shard, vectors, _unit(batch, dimensions, device), k) for batch in batches]


def _timing(shard: Shard, vectors: torch.Tensor, queries: torch.Tensor, k: int) -> Timing:
    asked: NDArray[np.float32] = queries.float().cpu().numpy()
    ours = _milliseconds(lambda: nearest(shard, asked, k), vectors.device)
    plain = _milliseconds(lambda: _plain(vectors, queries, k, vectors.dtype)[1].cpu(), vectors.device)
    brute = _plain(vectors, queries, k, torch.float32)
    found, scores = nearest(shard, asked, k)
    right = brute[1].cpu().numpy()
    # Where two rows are equal up to rounding in fp32, either is right.
    close = np.abs(scores - brute[0].cpu().numpy()) < 1e-6
    return Timing(len(queries), ours, plain, int(((found != right) & ~close).sum()))


def _plain(
    vectors: torch.Tensor, queries: torch.Tensor, k: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Products and top-k chunk by chunk, as an index of stock torch calls would do it."""
    asked = queries.to(dtype)
    best = []
    for start in range(0, len(vectors), CHUNK):
        found = (asked @ vectors[start : start + CHUNK].to(dtype).T).topk(k, dim=1)
        best.append((found.values, found.indices + start))
    values, indices = (torch.cat(part, dim=1) for part in zip(*best, strict=True))
    top = values.topk(k, dim=1)
    return top.values, indices.gather(1, top.indices)


def _milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """The median of some runs after one that is not counted."""
    times = []
    for _ in range(1 + REPEATS):
        _wait(device)
        began = perf_counter()
        work()
        _wait(device)
        times.append(1e3 * (perf_counter() - began))
    return float(np.median(times[1:]))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _unit(rows: int, dimensions: int, device: str) -> torch.Tensor:
    dice = torch.Generator(device).manual_seed(rows)
    # CPUs multiply fp16 slowly or not at all: there the plain way is given fp32.
    dtype = torch.float16 if torch.device(device).type == "cuda" else torch.float32
    made = torch.empty(rows, dimensions, dtype=dtype, device=device)
    for start in range(0, rows, CHUNK):
        drawn = torch.randn(min(CHUNK, rows - start), dimensions, device=device, generator=dice)
        made[start : start + CHUNK] = torch.nn.functional.normalize(drawn, dim=1).half()
    return made


def _shard(vectors: torch.Tensor) -> Shard:
    ranks = torch.arange(len(vectors), dtype=torch.int32, device=vectors.device)
    if vectors.device.type == "cuda":
        return DeviceShard(vectors, ranks)
    return HostShard(vectors.half().numpy(), ranks)
