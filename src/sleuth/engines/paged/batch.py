"""The inputs of one forward pass: packed on the host, then uploaded in one copy or written to static graph buffers.

Suffixes: N packed tokens, B decoding lanes, M sampled slots, T tiles, G chunks.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.engines.paged.scheduler import PrefillChunk
from sleuth.model.attention import Tiles

ALIGNMENT = 4  # 32-bit numbers in 16 bytes
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
DECODE_MULTIPLE = 64  # lanes; matrix products are tiled by 64 rows, so fewer are no faster
MIN_LANES = 64  # of a captured step with prefill; larger counts are powers of two, to capture few graphs
MIN_BUFFER = 512  # prefill tokens of the smallest buffers; each larger set holds twice as many
TOKENS_PER_CHUNK = 64  # mean chunk size for which buffers reserve chunks


@dataclass(frozen=True, slots=True)
class Batch:
    """One token of each decoding lane, then prefill chunks, packed without padding; all int32.

    `addresses_N` is the cache address of each token's key and value: page * PAGE_SIZE + offset, or -1 to store none.
    A lane sees the first `lengths_S[slot]` tokens of its slot, including its own. `last_M` selects the tokens whose
    successor is sampled; None, in a step without prefill, selects every lane.
    """

    ids_N: Tensor
    positions_N: Tensor
    addresses_N: Tensor
    slots_B: Tensor
    tiles: Tiles | None = None
    last_M: Tensor | None = None


def upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Copy arrays to the device in one asynchronous transfer, as int32 (float32 is reinterpreted bitwise).

    This replaces a dozen small transfers per step, each of which would take microseconds regardless of its size.
    """
    flat = [each.ravel() for each in arrays]
    parts = [each.view(np.int32) if each.dtype == np.float32 else each.astype(np.int32, copy=False) for each in flat]
    # Aligned to 16 bytes: kernels would be compiled again for unaligned pointers.
    starts = np.cumsum([0, *(-(-len(part) // ALIGNMENT) * ALIGNMENT for part in parts)])
    # torch's cache of pinned memory does not reuse a block before its copy is done.
    host = torch.empty(int(starts[-1]), dtype=torch.int32, pin_memory=device.type == "cuda")
    filled = host.numpy()
    for start, part in zip(starts.tolist(), parts, strict=False):
        filled[start : start + len(part)] = part
    there = host.to(device, non_blocking=True)
    return [there[start : start + len(part)] for start, part in zip(starts.tolist(), parts, strict=False)]


def uniform(seeds_M: np.ndarray, places_M: np.ndarray) -> np.ndarray:
    """Counter-based random numbers in [0, 1) (SplitMix64), keyed by request seed (uint64) and token index."""
    with np.errstate(over="ignore"):
        mixed_M = _splitmix(_splitmix(seeds_M + GOLDEN) + places_M.astype(np.uint64) * GOLDEN)
    uniform_M: np.ndarray = (mixed_M >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform_M


def _splitmix(bits_M: np.ndarray) -> np.ndarray:
    bits_M = (bits_M ^ (bits_M >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits_M = (bits_M ^ (bits_M >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits_M ^= bits_M >> np.uint64(31)
    return bits_M


@dataclass(frozen=True, slots=True)
class PackedPrefill:
    """Prefill chunks packed into int32 arrays that start with `lanes` blank entries for the decoding lanes.

    `last_M` selects the entries after which a token is sampled, lanes first; `ends_2G` holds each chunk's slot and end.
    """

    ids_N: np.ndarray
    positions_N: np.ndarray
    addresses_N: np.ndarray
    tiles_4T: np.ndarray
    last_M: np.ndarray
    ends_2G: np.ndarray

    @classmethod
    def of(cls, chunks: Sequence[PrefillChunk], lanes: int, queries: int) -> "PackedPrefill":
        """Pack the chunks into tiles of at most `queries` queries."""
        # All chunks at once: a step may have a thousand, and every numpy call costs a microsecond.
        blank = np.full(lanes, -1, dtype=np.int64)
        slots_G, starts_G, ends_G = np.array(
            [(chunk.request.slot, chunk.start, chunk.end) for chunk in chunks], dtype=np.int64
        ).T
        counts_G, before_G = ends_G - starts_G, starts_G // PAGE_SIZE
        last_G = lanes + counts_G.cumsum() - 1
        ids = array("i")
        for chunk in chunks:
            ids += chunk.request.ids[chunk.start : chunk.end]
        position_N = _ranges(starts_G, counts_G)
        # The pages that the chunks write to, end to end.
        pages = [
            page
            for chunk in chunks
            for page in chunk.request.pages[chunk.start // PAGE_SIZE : -(-chunk.end // PAGE_SIZE)]
        ]
        held_G = -(-ends_G // PAGE_SIZE) - before_G
        place_N = position_N // PAGE_SIZE + (held_G.cumsum() - held_G - before_G).repeat(counts_G)
        address_N = np.array(pages, dtype=np.int64)[place_N] * PAGE_SIZE + position_N % PAGE_SIZE
        tiles_G = -(-counts_G // queries)
        offset_T = _ranges(np.zeros_like(tiles_G), tiles_G) * queries
        first_G = last_G + 1 - counts_G
        tiles_4T = np.stack(
            [
                first_G.repeat(tiles_G) + offset_T,
                slots_G.repeat(tiles_G),
                starts_G.repeat(tiles_G) + offset_T,
                np.minimum(queries, counts_G.repeat(tiles_G) - offset_T),
            ]
        )
        ends = [chunk.is_last for chunk in chunks]
        return cls(
            np.concatenate([blank, ids]).astype(np.int32),
            np.concatenate([blank, position_N]).astype(np.int32),
            np.concatenate([blank, address_N]).astype(np.int32),
            tiles_4T.astype(np.int32),
            np.concatenate([np.arange(lanes), last_G[ends]]).astype(np.int32),
            np.stack([slots_G, ends_G]).astype(np.int32),
        )

    def arrays(self) -> list[np.ndarray]:
        """Arrays that a step reads, in upload order."""
        return [self.ids_N, self.positions_N, self.addresses_N, self.tiles_4T, self.last_M]

    def padded(self, tokens: int, tiles: int, sampled: int) -> "PackedPrefill":
        """Pad to the given sizes with tokens without an address, empty tiles, and samples that are ignored."""
        return PackedPrefill(
            _pad(self.ids_N, tokens, 0),
            _pad(self.positions_N, tokens, 0),
            _pad(self.addresses_N, tokens, -1),
            np.stack([_pad(column_T, tiles, 0) for column_T in self.tiles_4T]),
            _pad(self.last_M, sampled, 0),
            self.ends_2G,
        )


def _ranges(starts_G: np.ndarray, counts_G: np.ndarray) -> np.ndarray:
    """Consecutive numbers from each start, as many as its count, end to end."""
    ends_G = counts_G.cumsum()
    ranges: np.ndarray = np.arange(ends_G[-1]) + (starts_G - ends_G + counts_G).repeat(counts_G)
    return ranges


def _pad(values: np.ndarray, length: int, value: int) -> np.ndarray:
    out = np.full(length, value, dtype=np.int32)
    out[: len(values)] = values
    return out


def max_tiles(tokens: int, chunks: int, queries: int) -> int:
    """Maximum number of tiles for `tokens` tokens in `chunks` chunks; the last tile of each chunk may be short."""
    return -(-tokens // queries) + chunks


def pad_decode_lanes(lanes: int) -> int:
    """Lanes of a captured decode step, including padding."""
    return -(-lanes // DECODE_MULTIPLE) * DECODE_MULTIPLE


def pad_mixed_lanes(lanes: int) -> int:
    """Lanes of a captured step with prefill, including padding; 0 stays 0."""
    return max(MIN_LANES, 1 << (lanes - 1).bit_length()) if lanes else 0


@dataclass(frozen=True, slots=True)
class PrefillBuffers:
    """Static inputs of captured steps with up to `tokens` prefill tokens in up to `chunks` chunks."""

    tokens: int
    chunks: int
    ids_N: Tensor
    positions_N: Tensor
    addresses_N: Tensor
    tiles_4T: Tensor
    last_M: Tensor

    @classmethod
    def allocate(cls, tokens: int, chunks: int, lanes: int, queries: int, device: torch.device) -> "PrefillBuffers":
        sizes = (*[lanes + tokens] * 3, 4 * max_tiles(tokens, chunks, queries), lanes + chunks)
        buffers = [torch.zeros(size, dtype=torch.int32, device=device) for size in sizes]
        return cls(tokens, chunks, *buffers)

    @classmethod
    def allocate_all(cls, tokens: int, slots: int, queries: int, device: torch.device) -> "list[PrefillBuffers]":
        """Allocate buffers of growing size, the last of which fits every step."""
        sizes, size = [tokens], MIN_BUFFER
        while size < tokens:
            sizes.insert(-1, size)
            size *= 2
        lanes = pad_mixed_lanes(slots)
        chunks = [min(slots, max(MIN_LANES, size // TOKENS_PER_CHUNK)) for size in sizes[:-1]]
        return [cls.allocate(*each, lanes, queries, device) for each in zip(sizes, [*chunks, slots], strict=True)]

    def fits(self, tokens: int, chunks: int) -> bool:
        return tokens <= self.tokens and chunks <= self.chunks

    def write(self, prefill: PackedPrefill, lanes: int) -> None:
        """Pad chunks that were packed with `lanes` lanes, and upload them to the buffers."""
        padded = prefill.padded(lanes + self.tokens, len(self.tiles_4T) // 4, lanes + self.chunks)
        for there, sent in zip(self._views(lanes), upload(padded.arrays(), self.ids_N.device), strict=True):
            there.copy_(sent)

    def clear(self) -> None:
        self.addresses_N.fill_(-1)
        for each in (self.ids_N, self.positions_N, self.tiles_4T, self.last_M):
            each.zero_()

    def batch(self, slots_B: Tensor) -> Batch:
        """The batch of a step with these lanes, as views of the buffers."""
        ids_N, positions_N, addresses_N, tiles_4T, last_M = self._views(len(slots_B))
        return Batch(ids_N, positions_N, addresses_N, slots_B, Tiles(*tiles_4T.view(4, -1)), last_M)

    def _views(self, lanes: int) -> list[Tensor]:
        packed = [each[: lanes + self.tokens] for each in (self.ids_N, self.positions_N, self.addresses_N)]
        return [*packed, self.tiles_4T, self.last_M[: lanes + self.chunks]]
