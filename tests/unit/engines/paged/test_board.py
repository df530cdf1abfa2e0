"""What the host knows of the slots: tokens wait in a ring until their row is looked at."""

import asyncio

import numpy as np
import pytest

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.paged.board import RING, Board
from sleuth.engines.paged.pages import PAGE
from sleuth.engines.paged.row import Row


def row(slot: int, given: int = 3, seed: int = 0) -> Row:
    loop = asyncio.new_event_loop()
    future: asyncio.Future[Completion] = loop.create_future()
    loop.close()
    return Row(list(range(given)), given, Sampling(9, seed=seed), 9, 0, (0, slot), None, None, future, slot, [0])


def land(board: Board, slots: list[int], tokens: list[int], version: int = 0) -> None:
    board.land(np.array(slots), np.array(tokens), -np.array(tokens, dtype=float), version)


def test_each_row_gets_its_own_tokens_with_their_versions() -> None:
    board = Board(4)
    first, second = row(0), row(2, given=5)
    board.move_in(first)
    land(board, [0], [10])
    board.move_in(second)
    land(board, [0, 2], [11, 21], version=1)
    land(board, [2, 0], [22, 12], version=1)
    board.catch_up(first)
    assert first.sampled == [10, 11, 12]
    assert first.logprobs == [-10, -11, -12]
    assert first.versions == [0, 1, 1]
    land(board, [0, 2], [13, 23], version=2)
    board.catch_up(first)
    board.catch_up(second)
    assert first.sampled == [10, 11, 12, 13]
    assert (second.ids, second.versions) == ([0, 1, 2, 3, 4, 21, 22, 23], [1, 1, 2])


def test_looking_twice_adds_nothing() -> None:
    board, only = Board(1), row(0)
    board.move_in(only)
    land(board, [0], [7])
    for _ in range(2):
        board.catch_up(only)
    assert only.sampled == [7]


def test_rows_looked_at_once_a_page_lose_nothing_as_the_ring_goes_round() -> None:
    board, only = Board(1), row(0)
    board.move_in(only)
    for number in range(3 * RING + 5):
        land(board, [0], [number])
        if number % PAGE == PAGE - 1:
            board.catch_up(only)
    board.catch_up(only)
    assert only.sampled == list(range(3 * RING + 5))


def test_a_slot_knows_its_owners_apart() -> None:
    board, before, after = Board(2), row(1), row(1, given=6)
    board.move_in(before)
    tenant = board.tenant_S[1]
    board.move_out(before)
    board.move_in(after)
    assert board.tenant_S[1] != tenant
    assert board.rows[1] is after
    assert (board.given_S[1], board.seen_S[1], board.drawn_S[1]) == (6, 0, 0)


def test_a_row_that_comes_back_goes_on_where_it_was() -> None:
    board, only = Board(1), row(0)
    board.move_in(only)
    land(board, [0], [7])
    land(board, [0], [8])
    board.catch_up(only)
    board.move_out(only)
    board.move_in(only)
    assert (board.seen_S[0], board.drawn_S[0]) == (2, 2)
    land(board, [0], [9])
    board.catch_up(only)
    assert only.sampled == [7, 8, 9]


@pytest.mark.parametrize(("computed", "known"), [(2, 2), (3, 3), (5, 3)])
def test_what_is_computed_past_what_was_seen_is_not_known(computed: int, known: int) -> None:
    board, only = Board(1), row(0)
    board.move_in(only)
    board.computed_S[0] = computed
    assert board.known(only) == known


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_every_seed_has_its_place(seed: int) -> None:
    board, only = Board(1), row(0, seed=seed)
    board.move_in(only)
    assert int(board.seed_S[0]) == seed
