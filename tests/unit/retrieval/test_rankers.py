"""Reciprocal rank fusion."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.retrieval.index import Hybrid
from sleuth.retrieval.retriever import Ranking

ROWS = 12
BACKWARDS = np.arange(ROWS, dtype=np.uint32)[::-1]

rankings = st.lists(st.integers(0, ROWS - 1), unique=True)


class Fixed:
    """A ranker that gives every query that is not blank the same rows."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = rows

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        ranked: Ranking = [(row, 1.0 / (place + 1)) for place, row in enumerate(self.rows[:k])]
        return [ranked if query.strip() else [] for query in queries]


def naive(lists: Sequence[Sequence[int]], k: int, constant: int, depth: int) -> list[int]:
    """The rows by their exact sums."""
    sums: dict[int, Fraction] = {}
    for rows in lists:
        for place, row in enumerate(rows[: max(depth, k)]):
            sums[row] = sums.get(row, Fraction(0)) + Fraction(1, constant + place + 1)
    return sorted(sums, key=lambda row: (-sums[row], BACKWARDS[row]))[:k]


@settings(max_examples=100, deadline=None)
@given(st.lists(rankings, min_size=1, max_size=4), st.integers(1, 15), st.integers(0, 80), st.integers(1, 15))
def test_rows_are_ranked_by_reciprocal_rank_sum(lists: list[list[int]], k: int, constant: int, depth: int) -> None:
    hybrid = Hybrid([Fixed(rows) for rows in lists], BACKWARDS, constant, depth)
    (ranked,) = hybrid.rank(["anything"], k)
    assert [row for row, _ in ranked] == naive(lists, k, constant, depth)


@settings(max_examples=50, deadline=None)
@given(st.lists(rankings, min_size=1, max_size=3), st.integers(1, 8))
def test_smaller_k_is_a_prefix(lists: list[list[int]], k: int) -> None:
    hybrid = Hybrid([Fixed(rows) for rows in lists], BACKWARDS, depth=8)
    assert hybrid.rank(["anything"], k)[0] == hybrid.rank(["anything"], 8)[0][:k]


def test_scores_are_the_sums() -> None:
    hybrid = Hybrid([Fixed([3, 5]), Fixed([5])], BACKWARDS)
    assert hybrid.rank(["anything"], 5) == [[(5, 1 / 61 + 1 / 62), (3, 1 / 61)]]


def test_equal_sums_come_in_the_order_of_the_ids_across_the_cut() -> None:
    hybrid = Hybrid([Fixed([1]), Fixed([2])], BACKWARDS)
    assert hybrid.rank(["anything"], 1) == [[(2, 1 / 61)]]


def test_same_places_in_another_order_are_equal() -> None:
    # 1/61 + 1/62 + 1/63 depends on the order in which floats are added.
    lists = [[7, 8, 9], [8, 9, 7], [9, 7, 8]]
    (ranked,) = Hybrid([Fixed(rows) for rows in lists], BACKWARDS).rank(["anything"], 3)
    assert [row for row, _ in ranked] == [9, 8, 7]
    assert len({score for _, score in ranked}) == 1


def test_blank_query_has_no_hits() -> None:
    assert Hybrid([Fixed([1]), Fixed([2])], BACKWARDS).rank(["", "x"], 1)[0] == []


def test_k_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="k is 0, expected at least 1"):
        Hybrid([Fixed([1])], BACKWARDS).rank(["x"], 0)
