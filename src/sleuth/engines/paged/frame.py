"""Chunks at fixed places on the device, in a few sizes: what captured steps with given tokens read.

Suffixes: N packed tokens, M sampled rows, T tiles.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sleuth.engines.paged import upload
from sleuth.engines.paged.batch import Batch
from sleuth.engines.paged.chunk import Chunk, most_tiles
from sleuth.model.attention import Tiles

SMALLEST = 512  # given tokens; each next frame has room for twice as many
LANES = 64  # at least, in a step with given tokens; otherwise powers of two, so that few steps are captured
SEGMENT = 64  # tokens that segments have in the mean at least, for which a frame has room


def lanes_of(lanes: int) -> int:
    """Lanes with the fillers that a captured step with given tokens has; 0 where there are none."""
    return max(LANES, 1 << (lanes - 1).bit_length()) if lanes else 0


@dataclass(frozen=True, slots=True)
class Frame:
    """Room for so many given tokens in so many segments, behind lanes."""

    tokens: int
    segments: int
    ids_N: Tensor
    positions_N: Tensor
    addresses_N: Tensor
    tiles_4T: Tensor
    last_M: Tensor

    @classmethod
    def of(cls, tokens: int, segments: int, lanes: int, queries: int, device: torch.device) -> "Frame":
        """Behind at most `lanes` lanes."""
        tiles = most_tiles(tokens, segments, queries)
        sizes = (*[lanes + tokens] * 3, 4 * tiles, lanes + segments)
        places = [torch.zeros(size, dtype=torch.int32, device=device) for size in sizes]
        return cls(tokens, segments, *places)

    def holds(self, tokens: int, segments: int) -> bool:
        return tokens <= self.tokens and segments <= self.segments

    def write(self, chunk: Chunk, lanes: int) -> None:
        """Sends a chunk that was packed behind so many lanes to its place, filled up."""
        padded = chunk.padded(lanes + self.tokens, len(self.tiles_4T) // 4, lanes + self.segments)
        for there, sent in zip(self._places(lanes), upload.send(padded.arrays(), self.ids_N.device), strict=True):
            there.copy_(sent)

    def clear(self) -> None:
        """Holds nothing: no token of it goes anywhere."""
        self.addresses_N.fill_(-1)
        for each in (self.ids_N, self.positions_N, self.tiles_4T, self.last_M):
            each.zero_()

    def batch(self, slots_B: Tensor) -> Batch:
        """What a step of these lanes computes: views, whatever they hold by then."""
        ids_N, positions_N, addresses_N, tiles_4T, last_M = self._places(len(slots_B))
        return Batch(ids_N, positions_N, addresses_N, slots_B, Tiles(*tiles_4T.view(4, -1)), last_M)

    def _places(self, lanes: int) -> list[Tensor]:
        packed = [each[: lanes + self.tokens] for each in (self.ids_N, self.positions_N, self.addresses_N)]
        return [*packed, self.tiles_4T, self.last_M[: lanes + self.segments]]


def frames(tokens: int, slots: int, queries: int, device: torch.device) -> list[Frame]:
    """From the smallest to one that holds any step's given tokens."""
    sizes, size = [tokens], SMALLEST
    while size < tokens:
        sizes.insert(-1, size)
        size *= 2
    lanes = lanes_of(slots)
    segments = [min(slots, max(LANES, size // SEGMENT)) for size in sizes[:-1]]
    return [Frame.of(*each, lanes, queries, device) for each in zip(sizes, [*segments, slots], strict=True)]
