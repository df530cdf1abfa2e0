"""Packing: rows end to end, every sampled token scored once, given ones never."""

from collections.abc import Callable

import pytest
import torch

from sleuth.records import Trajectory
from sleuth.train.packing import Pack, Row, pack, row_of

CPU = torch.device("cpu")


def row(length: int, scored: int, first: int = 0) -> Row:
    """A row whose last tokens are scored; ids count up from `first`."""
    return Row(
        tuple(range(first, first + length)),
        (0.0,) * (length - scored) + (0.5,) * scored,
        old=tuple(-0.25 * n for n in range(scored)),
    )


def packed(*rows: Row, tokens: int = 1000) -> list[Pack]:
    return list(pack(rows, tokens, CPU))


def test_rows_lie_end_to_end_without_padding() -> None:
    (only,) = packed(row(4, 2), row(3, 1, first=10))
    assert only.rows == (1, 0)
    assert only.lengths == (3, 4)
    assert only.ids_N.tolist() == [10, 11, 12, 0, 1, 2, 3]


def test_a_scored_token_is_predicted_by_the_one_before_it_in_its_row() -> None:
    (only,) = packed(row(4, 3), row(3, 2, first=10))
    assert only.ids_N[only.before_T].tolist() == [10, 11, 0, 1, 2]
    assert only.target_T.tolist() == [11, 12, 1, 2, 3]
    assert only.scored == (2, 3)


def test_what_belongs_to_a_token_stands_beside_it() -> None:
    first = Row((1, 2, 3), (0.0, 0.5, 0.0), advantage=2.0, old=(-0.5,))
    second = Row((4, 5, 6, 7), (0.0, 0.0, 0.25, 1.0), advantage=-1.0, old=(-1.0, -2.0))
    (only,) = packed(first, second)
    assert only.weight_T.tolist() == [0.5, 0.25, 1.0]
    assert only.advantage_T.tolist() == [2.0, -1.0, -1.0]
    assert only.old_T.tolist() == [-0.5, -1.0, -2.0]


def test_packs_keep_to_the_budget_and_a_longer_row_has_one_to_itself() -> None:
    packs = packed(row(30, 1), row(4, 1), row(5, 1), row(25, 1), row(6, 1), tokens=10)
    assert [each.lengths for each in packs] == [(4, 5), (6,), (25,), (30,)]
    assert [each.rows for each in packs] == [(1, 2), (4,), (3,), (0,)]


def test_rows_without_a_scored_token_have_empty_tensors() -> None:
    (only,) = packed(Row((1, 2), (0.0, 0.0)))
    assert only.scored == (0,)
    assert [len(each) for each in (only.before_T, only.target_T, only.weight_T, only.advantage_T, only.old_T)] == [
        0
    ] * 5


def test_no_rows_make_no_pack() -> None:
    assert packed() == []


def test_trajectory_is_scored_where_it_was_sampled(trajectory: Callable[..., Trajectory]) -> None:
    made = row_of(trajectory((7, 8, 9, 10), (False, True, False, True), (-0.5, -0.75)), advantage=3.0, weight=0.1)
    assert made == Row((7, 8, 9, 10), (0.0, 0.1, 0.0, 0.1), 3.0, (-0.5, -0.75))


@pytest.mark.parametrize(
    ("ids", "weights"), [((1, 2), (1.0, 1.0)), ((1, 2), (0.0,)), ((), ())], ids=["first token", "lengths", "empty"]
)
def test_row_that_cannot_be_scored_is_refused(ids: tuple[int, ...], weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="nothing comes before it"):
        Row(ids, weights)
