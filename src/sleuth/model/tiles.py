"""Queries cut into tiles, each of which one program attends for.

Suffixes: T tiles.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tiles:
    """Queries of some sequences; all int32.

    A tile has `count_T` queries, packed from `first_T` on, of the sequence in slot `slot_T`; the first of them stands
    at position `position_T`, and each sees its sequence up to itself, from the pages the table names for the slot.
    """

    first_T: Tensor
    slot_T: Tensor
    position_T: Tensor
    count_T: Tensor


def cut(first: int, slot: int, position: int, count: int, queries: int) -> np.ndarray:
    """The columns of Tiles for `count` queries of one sequence, at most `queries` in a tile."""
    offset = np.arange(0, count, queries, dtype=np.int32)
    return np.stack(
        [first + offset, np.full_like(offset, slot), position + offset, np.minimum(queries, count - offset)]
    )
