"""Triton kernels for exact dense search: the maximum of each group of rows, and the scores of selected groups.

The scores of all rows are never stored: each group of rows yields one number per query, and only groups that may
contain one of the best rows are scored again.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

GROUP = 128  # rows that share a maximum


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch configuration: queries and dimensions per step, warps, pipeline stages.

    A persistent kernel launches one program per multiprocessor, which loops over the tiles.
    """

    queries: int
    depth: int
    warps: int
    stages: int
    persistent: bool


# The fastest of 16 to 32 variants each, for 21,015,324 x 768 vectors on an H200.
TILES = (
    (16, Tile(16, 128, 4, 4, persistent=False)),
    (32, Tile(32, 128, 4, 4, persistent=False)),
    (64, Tile(64, 64, 4, 3, persistent=False)),
)
LARGE = Tile(128, 128, 4, 3, persistent=True)


def tile_for(queries: int) -> Tile:
    """Return the configuration for a batch size: small batches are memory-bound, large ones compute-bound."""
    return next((tile for limit, tile in TILES if queries <= limit), LARGE)


@triton.jit
def _maxima(
    vectors, queries, maxima, rows, count, groups, total,
    dimensions: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(count, TILE)
    # The tiles of a group are adjacent, so its rows are read from memory once and then from the cache.
    for tile in tl.range(tl.program_id(0), total, tl.num_programs(0), flatten=True):
        group = tile // tiles
        first = (tile % tiles) * TILE
        products = tl.zeros((GROUP, TILE), tl.float32)
        for start in range(0, dimensions, DEPTH):
            left = vectors.load([group * GROUP, start])
            right = queries.load([first, start])
            products = tl.dot(left, right.T, products)
        there = group * GROUP + tl.arange(0, GROUP) < rows
        products = tl.where(there[:, None], products, float("-inf"))
        asked = first + tl.arange(0, TILE)
        tl.store(maxima + asked.to(tl.int64) * groups + group, tl.max(products, 0), asked < count)


@triton.jit
def _scores(
    vectors, queries, chosen, scores, rows, width,
    dimensions: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    asked, place = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = tl.load(chosen + asked * width + place)
    row = group.to(tl.int64) * GROUP + tl.arange(0, GROUP)
    depth = tl.arange(0, DEPTH)
    there = row < rows
    total = tl.zeros((GROUP,), tl.float64)
    for start in range(0, dimensions, DEPTH):
        column = start + depth
        inside = column < dimensions
        left = tl.load(vectors + row[:, None] * dimensions + column[None, :], there[:, None] & inside[None, :], 0.0)
        right = tl.load(queries + asked * dimensions + column, inside, 0.0)
        # Products of two fp16 numbers are exact in fp32, and their fp64 sum is exact up to the last bits: scores do not
        # depend on batch, device or order.
        total += tl.sum((left.to(tl.float32) * right.to(tl.float32)[None, :]).to(tl.float64), 1)
    total = tl.where(there, total, float("-inf"))
    tl.store(scores + (asked * width + place) * GROUP + tl.arange(0, GROUP), total.to(tl.float32))


def group_maxima(vectors: torch.Tensor, queries: torch.Tensor, tile: Tile | None = None) -> torch.Tensor:
    """Return the highest inner product per group of rows, of shape (queries, groups), in fp32."""
    (rows, dimensions), count = vectors.shape, len(queries)
    tile = tile or tile_for(count)
    groups = triton.cdiv(rows, GROUP)
    total = groups * triton.cdiv(count, tile.queries)
    maxima = torch.empty(count, groups, dtype=torch.float32, device=vectors.device)
    gpu = vectors.device.type == "cuda"
    processors = torch.cuda.get_device_properties(vectors.device).multi_processor_count if gpu else 1
    _maxima[(min(total, processors) if tile.persistent else total,)](
        TensorDescriptor.from_tensor(vectors, [GROUP, tile.depth]),
        TensorDescriptor.from_tensor(queries, [tile.queries, tile.depth]),
        maxima, rows, count, groups, total,
        dimensions=dimensions, GROUP=GROUP, TILE=tile.queries, DEPTH=tile.depth,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return maxima


def group_scores(vectors: torch.Tensor, queries: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the inner products of each query with its chosen groups of rows, of shape (queries, chosen * GROUP)."""
    (rows, dimensions), (count, width) = vectors.shape, chosen.shape
    scores = torch.empty(count, width * GROUP, dtype=torch.float32, device=vectors.device)
    _scores[(count, width)](
        vectors, queries, chosen, scores, rows, width,
        dimensions=dimensions, GROUP=GROUP, DEPTH=32, num_warps=4,
    )  # fmt: skip
    return scores
