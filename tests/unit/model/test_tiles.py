"""Sequences cut into tiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleuth.model.tiles import cut

COUNTS = st.integers(1, 300)


@given(first=st.integers(0, 10**6), slot=st.integers(0, 500), position=st.integers(0, 5000), count=COUNTS, most=COUNTS)
def test_every_query_is_in_one_tile(first: int, slot: int, position: int, count: int, most: int) -> None:
    firsts, slots, positions, counts = cut(first, slot, position, count, most)
    places = [at + query for at, held in zip(firsts, counts, strict=True) for query in range(held)]
    assert places == list(range(first, first + count))
    assert set(slots) == {slot}
    assert list(positions - firsts) == [position - first] * len(firsts)
    # All but the last are full: fewer tiles would not hold them.
    assert list(counts[:-1]) == [most] * (len(counts) - 1)
    assert 1 <= counts[-1] <= most


def test_columns_are_small_integers() -> None:
    assert cut(3, 1, 16, 5, 2).tolist() == [[3, 5, 7], [1, 1, 1], [16, 18, 20], [2, 2, 1]]
    assert cut(3, 1, 16, 5, 2).dtype == np.int32


@pytest.mark.parametrize("queries", [1, 64])
def test_nothing_is_no_tile(queries: int) -> None:
    assert cut(3, 1, 0, 0, queries).shape == (4, 0)
