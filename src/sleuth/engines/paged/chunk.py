"""The given tokens of a step, packed behind its lanes, as arrays.

Suffixes: N packed tokens, M sampled rows, T tiles, G segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sleuth.engines.paged.pages import PAGE
from sleuth.engines.paged.schedule import Segment
from sleuth.model.attention import split_into_tiles


@dataclass(frozen=True, slots=True)
class Chunk:
    """Segments behind `lanes` places that are left to lanes; int32.

    `last_M` names the places after which a token is sampled, lanes first; `ends_2G` slots and lengths of the segments.
    """

    ids_N: np.ndarray
    positions_N: np.ndarray
    addresses_N: np.ndarray
    tiles_4T: np.ndarray
    last_M: np.ndarray
    ends_2G: np.ndarray

    @classmethod
    def of(cls, segments: Sequence[Segment], lanes: int, queries: int) -> "Chunk":
        """Segments one after the other, in tiles of at most `queries` queries."""
        blank = np.full(lanes, -1, dtype=np.int32)
        ids, positions, addresses = [blank], [blank], [blank]
        tiles = [np.zeros((4, 0), dtype=np.int32)]
        last, first = [*range(lanes)], lanes
        for segment in segments:
            position, address = _places(segment)
            ids.append(np.array(segment.row.ids[segment.start : segment.end], dtype=np.int32))
            positions.append(position)
            addresses.append(address)
            tiles.append(split_into_tiles(first, segment.row.slot, segment.start, len(position), queries))
            first += len(position)
            if segment.whole:
                last.append(first - 1)
        ends = [[segment.row.slot for segment in segments], [segment.end for segment in segments]]
        return cls(
            np.concatenate(ids),
            np.concatenate(positions),
            np.concatenate(addresses),
            np.concatenate(tiles, axis=1),
            np.array(last, dtype=np.int32),
            np.array(ends, dtype=np.int32),
        )

    def arrays(self) -> list[np.ndarray]:
        """What a step reads of it, in the order in which it is sent."""
        return [self.ids_N, self.positions_N, self.addresses_N, self.tiles_4T, self.last_M]

    def padded(self, tokens: int, tiles: int, sampled: int) -> "Chunk":
        """The same with room left over: tokens that go nowhere, tiles without queries, rows sampled for nobody."""
        return Chunk(
            _filled(self.ids_N, tokens, 0),
            _filled(self.positions_N, tokens, 0),
            _filled(self.addresses_N, tokens, -1),
            np.stack([_filled(column_T, tiles, 0) for column_T in self.tiles_4T]),
            _filled(self.last_M, sampled, 0),
            self.ends_2G,
        )


def most_tiles(tokens: int, segments: int, queries: int) -> int:
    """Tiles of so many tokens in so many segments at most: the last of each segment may be short."""
    return -(-tokens // queries) + segments


def _places(segment: Segment) -> tuple[np.ndarray, np.ndarray]:
    """Where each token of a segment stands in its sequence, and where its key goes."""
    position = np.arange(segment.start, segment.end, dtype=np.int32)
    pages = np.array(segment.row.pages, dtype=np.int32)
    return position, pages[position // PAGE] * PAGE + position % PAGE


def _filled(array: np.ndarray, length: int, value: int) -> np.ndarray:
    out = np.full(length, value, dtype=np.int32)
    out[: len(array)] = array
    return out
