"""Shares of a batch: every row once, nearly as many tokens for each rank, and as many packs."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from sleuth.model.packing import Pack, Row, row
from sleuth.train.ranks import ALONE, Alone, Item
from sleuth.train.sharding import assign_rows, rank_packs, score_rows

CPU = torch.device("cpu")


class Board:
    """Where threads that play ranks lay what they bring, until all have."""

    def __init__(self, world: int) -> None:
        self.brought: list[list[Any]] = [[] for _ in range(world)]
        self.ready = threading.Barrier(world)


@dataclass(frozen=True)
class Among(Alone):
    """One of several ranks, each of them a thread."""

    board: Board = field(default_factory=lambda: Board(1))

    def gather(self, mine: Sequence[Item], what: str) -> list[list[Item]]:
        self.board.brought[self.rank] = list(mine)
        self.board.ready.wait(10)
        return [list(theirs) for theirs in self.board.brought]


def made(lengths: Sequence[int]) -> list[Row]:
    """Rows of which all tokens but the first are scored, each with its number."""
    return [
        row([number] * length, [0.0, *[1.0] * (length - 1)], number=[float(number)] * (length - 1))
        for number, length in enumerate(lengths)
    ]


def lengths(seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(2, 40) for _ in range(dice.randrange(1, 20))]


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_every_row_is_of_one_rank_and_none_has_much_more(world: int, seed: int) -> None:
    known = lengths(seed)
    given = assign_rows(known, world)
    assert len(given) == world
    assert sorted(number for numbers in given for number in numbers) == list(range(len(known)))
    tokens = [sum(known[number] for number in numbers) for numbers in given]
    assert max(tokens) - min(tokens) <= max(known)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_ranks_make_as_many_packs_and_idle_ones_hold_nothing(world: int, seed: int) -> None:
    rows = made(lengths(seed))
    every = [list(rank_packs(rows, 30, CPU, Among(rank, world))) for rank in range(world)]
    assert len({len(found) for found in every}) == 1
    busy = [packed for found in every for packed in found if packed.rows]
    assert sorted(number for packed in busy for number in packed.rows) == list(range(len(rows)))
    for packed in (packed for found in every for packed in found if not packed.rows):
        assert (len(packed.before_T), len(packed.columns["number"]), len(packed.ids_N) > 0) == (0, 0, True)


def numbers(packed: Pack) -> torch.Tensor:
    return packed.columns["number"]


@pytest.mark.parametrize("tokens", [1, 30, 1000])
def test_what_was_scored_comes_back_in_the_order_of_the_rows(tokens: int) -> None:
    rows = made(lengths(1))
    found = score_rows(rows, tokens, CPU, ALONE, numbers)
    assert [each.tolist() for each in found] == [row.columns["number"].tolist() for row in rows]
    assert not any(each.requires_grad for each in found)


def test_ranks_score_between_them_what_one_scores_alone() -> None:
    rows, board = made([5, 9, 4, 30, 2]), Board(2)
    alone = [each.tolist() for each in score_rows(rows, 20, CPU, ALONE, numbers)]

    def by(rank: int) -> list[list[float]]:
        return [each.tolist() for each in score_rows(rows, 20, CPU, Among(rank, 2, board), numbers)]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(by, range(2))) == [alone, alone]
    assert all(board.brought)
