"""Packing: rows end to end, every scored token once, given ones never."""

from dataclasses import replace

import pytest
import torch

from sleuth.model.packing import Pack, Row, pack, row

CPU = torch.device("cpu")


def counted(length: int, scored: int, first: int = 0) -> Row:
    """A row whose last tokens are scored; ids count up from `first`."""
    return row(
        range(first, first + length),
        (0.0,) * (length - scored) + (0.5,) * scored,
        old=[-0.25 * n for n in range(scored)],
    )


def packed(*rows: Row, tokens: int = 1000) -> list[Pack]:
    return list(pack(rows, tokens, CPU))


def test_rows_lie_end_to_end_without_padding() -> None:
    (only,) = packed(counted(4, 2), counted(3, 1, first=10))
    assert only.rows == (1, 0)
    assert only.lengths == (3, 4)
    assert only.ids_N.tolist() == [10, 11, 12, 0, 1, 2, 3]


def test_a_scored_token_is_predicted_by_the_one_before_it_in_its_row() -> None:
    (only,) = packed(counted(4, 3), counted(3, 2, first=10))
    assert only.ids_N[only.before_T].tolist() == [10, 11, 0, 1, 2]
    assert only.target_T.tolist() == [11, 12, 1, 2, 3]
    assert only.scored == (2, 3)
    assert only.row_T.tolist() == [0, 0, 1, 1, 1]


def test_what_belongs_to_a_token_stands_beside_it() -> None:
    first = row((1, 2, 3), (0.0, 0.5, 0.0), advantage=[2.0], old=[-0.5])
    second = row((4, 5, 6, 7), (0.0, 0.0, 0.25, 1.0), advantage=[-1.0, -1.0], old=[-1.0, -2.0])
    (only,) = packed(first, second)
    assert {name: column.tolist() for name, column in only.columns.items()} == {
        "weight": [0.5, 0.25, 1.0],
        "advantage": [2.0, -1.0, -1.0],
        "old": [-0.5, -1.0, -2.0],
    }


def test_columns_can_be_added_and_replaced() -> None:
    made = row((1, 2, 3), (0.0, 0.5, 1.0)).with_columns(old=torch.zeros(2), weight=torch.ones(2))
    assert {name: column.tolist() for name, column in made.columns.items()} == {"weight": [1.0, 1.0], "old": [0.0, 0.0]}


def test_packs_keep_to_the_budget_and_a_longer_row_has_one_to_itself() -> None:
    packs = packed(counted(30, 1), counted(4, 1), counted(5, 1), counted(25, 1), counted(6, 1), tokens=10)
    assert [each.lengths for each in packs] == [(4, 5), (6,), (25,), (30,)]
    assert [each.rows for each in packs] == [(1, 2), (4,), (3,), (0,)]


def test_rows_without_a_scored_token_have_empty_tensors() -> None:
    (only,) = packed(row((1, 2), (0.0, 0.0), old=[]))
    assert only.scored == (0,)
    assert [len(each) for each in (only.before_T, only.target_T, only.row_T, *only.columns.values())] == [0] * 5


def test_no_rows_make_no_pack() -> None:
    assert packed() == []


@pytest.mark.parametrize(
    ("ids", "weights", "old", "told"),
    [
        ((1, 2), (1.0, 1.0), (0.0, 0.0), "cannot be scored"),
        ((1, 2), (0.0,), (), "a row of 2 tokens .* got 1"),
        ((), (), (), "needs tokens"),
        ((1, 2), (0.0, 1.0), (), "column old has 0 values for 1 scored tokens"),
    ],
    ids=["first token", "lengths", "empty", "column"],
)
def test_row_that_cannot_be_scored_is_refused(
    ids: tuple[int, ...], weights: tuple[float, ...], old: tuple[float, ...], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        row(ids, weights, old=old)


def test_rows_of_one_trajectory_share_a_number() -> None:
    rows = [replace(counted(3 + n, 1 + n), trajectory=number) for n, number in enumerate((7, 5, 7))]
    (only,) = packed(*rows, counted(9, 1))
    assert only.row_T.tolist() == [0, 1, 1, 0, 0, 0, 2]
