"""Slots: who gets which, what they keep, and when they lose it."""

from collections.abc import Sequence

import pytest
import torch
from transformers import LlamaConfig

from sleuth.engines.base import Seat
from sleuth.engines.paged.pool import Pool


@pytest.fixture
def pool() -> Pool:
    config = LlamaConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=8
    )
    return Pool(config, 3, 16, torch.device("cpu"), torch.float32)


def used(pool: Pool, ids: Sequence[int], seat: Seat | None = None) -> tuple[int, int]:
    """Takes a slot, fills it as the engine does, gives it back; the slot and what it shared."""
    slot, shared = taken(pool, ids, seat)
    pool.give_back(slot)
    return slot, shared


def taken(pool: Pool, ids: Sequence[int], seat: Seat | None = None) -> tuple[int, int]:
    found = pool.take(ids, seat)
    assert found is not None
    slot, shared = found
    pool.held[slot].extend(ids[shared:])
    return slot, shared


def test_room_for_every_slot_layer_head_and_token(pool: Pool) -> None:
    assert [states.shape for states in (*pool.keys_SHCD, *pool.values_SHCD)] == [(3, 2, 16, 2)] * 4


def test_slots_are_handed_out_once_in_order_until_none_is_left(pool: Pool) -> None:
    assert [taken(pool, [n]) for n in range(3)] == [(0, 0), (1, 0), (2, 0)]
    assert pool.take([9], None) is None
    pool.give_back(1)
    assert taken(pool, [9]) == (1, 0)


def test_the_longest_common_beginning_is_reused(pool: Pool) -> None:
    used(pool, [1, 2, 3, 4])
    used(pool, [5, 6])
    used(pool, [5, 6, 7, 8, 9])
    assert used(pool, [1, 2, 3, 9, 9]) == (0, 3)
    assert used(pool, [5, 6, 7, 8, 9, 1, 1]) == (1, 5)
    assert pool.held[1] == [5, 6, 7, 8, 9, 1, 1]


def test_one_token_at_least_is_left_to_compute(pool: Pool) -> None:
    used(pool, [1, 2, 3])
    assert used(pool, [1, 2, 3]) == (0, 2)
    assert used(pool, [1, 2]) == (0, 1)
    assert used(pool, [1]) == (0, 0)


def test_what_differs_is_forgotten_when_the_slot_is_taken(pool: Pool) -> None:
    used(pool, [1, 2, 3, 4])
    found = pool.take([1, 2, 7], None)
    assert found == (0, 2)
    assert pool.held[0] == [1, 2]


def test_of_equal_slots_the_one_idle_longest_is_taken(pool: Pool) -> None:
    for n in range(3):
        taken(pool, [n])
    for slot in (2, 0, 1):
        pool.give_back(slot)
    assert [taken(pool, [9])[0] for _ in range(3)] == [2, 0, 1]


def test_a_caller_gets_its_own_slot_even_where_another_shares_more(pool: Pool) -> None:
    seat = Seat(0)
    assert used(pool, [1, 2], seat)[0] == 0
    pool.held[1].extend([5, 6, 7])
    assert used(pool, [5, 6, 7, 8], seat) == (0, 0)


def test_slots_of_callers_who_come_back_are_taken_last(pool: Pool) -> None:
    first, second = Seat(0), Seat(1)
    assert used(pool, [1, 2, 3], first)[0] == 0
    assert used(pool, [4, 5, 6], second)[0] == 1
    assert taken(pool, [1, 2, 3, 4])[0] == 2
    assert taken(pool, [4, 5, 6, 7]) == (1, 3)
    assert used(pool, [1, 2, 3, 4, 5], first) == (0, 3)


def test_an_evicted_caller_gets_another_slot_and_pays_again(pool: Pool) -> None:
    seats = [Seat(n) for n in range(4)]
    for n, seat in enumerate(seats):
        used(pool, [n, n, n], seat)
    assert used(pool, [0, 0, 0, 5], seats[0])[1] == 0
    assert used(pool, [3, 3, 3, 5], seats[3])[1] == 3


def test_after_leaving_a_slot_is_anybodys(pool: Pool) -> None:
    seat = Seat(0)
    used(pool, [1, 2, 3], seat)
    pool.leave(seat)
    pool.leave(seat)
    assert used(pool, [1, 2, 3, 4]) == (0, 3)


def test_one_caller_with_two_calls_at_once_has_two_slots(pool: Pool) -> None:
    seat = Seat(0)
    first, second = taken(pool, [1, 2], seat), taken(pool, [1, 2], seat)
    assert first[0] != second[0]


def test_forgetting_keeps_who_is_where_and_loses_all_tokens(pool: Pool) -> None:
    seat = Seat(0)
    used(pool, [7, 7])
    assert used(pool, [1, 2, 3], seat)[0] == 1
    busy, _ = taken(pool, [4, 4])
    pool.forget()
    assert pool.held == [[], [], []]
    assert used(pool, [1, 2, 3], seat) == (1, 0)
    pool.give_back(busy)
    assert sorted(taken(pool, [9])[0] for _ in range(3)) == [0, 1, 2]


def test_forgetting_brings_back_the_order_of_a_start(pool: Pool) -> None:
    for n in range(3):
        taken(pool, [n])
    for slot in (2, 0, 1):
        pool.give_back(slot)
    pool.forget()
    assert [taken(pool, [9])[0] for _ in range(3)] == [0, 1, 2]


def test_clearing_is_a_new_start(pool: Pool) -> None:
    for n in range(3):
        taken(pool, [n], Seat(n))
    pool.values_SHCD[1].fill_(float("nan"))
    pool.clear()
    assert [taken(pool, [9])[0] for _ in range(3)] == [0, 1, 2]
    assert not any(states.any() for states in (*pool.keys_SHCD, *pool.values_SHCD))
