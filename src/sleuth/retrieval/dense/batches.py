"""Batches for encoders: the shape a text is computed in is decided by its own length, never by its companions.

Matrix products round differently in different shapes, and attention differently with a mask and without. In full
batches of fixed shapes a query has the same vector, to the last bit, asked alone or among others.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """How texts are put together: widths are multiples of `step`, batches of `tokens` or a few more, `full` or not."""

    step: int
    tokens: int
    full: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Places of texts computed together, padded to `width` tokens and, with rows nobody reads, to `height` rows."""

    places: list[int]
    width: int
    height: int


def batches(lengths: Sequence[int], longest: int, shape: Shape) -> Iterator[Batch]:
    """Every text in one batch, the widest first; no width is above `longest`."""
    alike: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for place, length in enumerate(lengths):
        width = min(longest, -(-length // shape.step) * shape.step)
        # A batch without any padding is computed without a mask.
        alike[width, length == width].append(place)
    for (width, _), places in sorted(alike.items(), reverse=True):
        rows = -(-shape.tokens // width)
        for start in range(0, len(places), rows):
            some = places[start : start + rows]
            yield Batch(some, width, rows if shape.full else len(some))
