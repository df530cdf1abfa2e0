"""The page pool: claims, sharing, caching, eviction and invalidation."""

import random
import time
from collections.abc import Sequence

import pytest

from sleuth.engines.paged.page_pool import PAGE_SIZE, PagePool
from sleuth.errors import EngineFailure


def text(tokens: int, seed: int = 0) -> list[int]:
    """So many tokens, like no other text's."""
    return [1000 * seed + place for place in range(tokens)]


def admitted(pages: PagePool, ids: Sequence[int], room: int = 0) -> tuple[list[int], int]:
    """The pages of a sequence whose prompt is being computed, and how many tokens were found."""
    held, found = pages.match_prefix(ids)
    assert pages.allocate(held, max(len(ids), room))
    pages.register(held, ids, found, len(ids))
    return held, found


def used(pages: PagePool, ids: Sequence[int]) -> list[int]:
    """The pages of a sequence that has come and gone, all of it computed."""
    held, _ = admitted(pages, ids)
    pages.release(held, ids, len(ids))
    return held


def found(pages: PagePool, ids: Sequence[int]) -> int:
    """How many tokens would be found; leaves everything as it was, but for the order of eviction."""
    held, tokens = pages.match_prefix(ids)
    pages.release(held, ids, tokens)
    return tokens


def test_fresh_pages_come_in_rising_order() -> None:
    pages = PagePool(4)
    held: list[int] = []
    assert pages.allocate(held, PAGE_SIZE + 1)
    assert pages.allocate(held, 2 * PAGE_SIZE)
    assert pages.allocate(held, 2 * PAGE_SIZE + 1)
    assert (held, pages.free, pages.in_use) == ([0, 1, 2], 1, 3)


def test_too_few_pages_change_nothing() -> None:
    pages = PagePool(3)
    used(pages, text(PAGE_SIZE))
    held: list[int] = []
    assert pages.allocate(held, PAGE_SIZE)
    assert not pages.allocate(held, 4 * PAGE_SIZE)
    assert (len(held), pages.free) == (1, 2)
    assert found(pages, text(PAGE_SIZE + 1)) == PAGE_SIZE


def test_nothing_is_found_at_first() -> None:
    assert PagePool(2).match_prefix(text(40)) == ([], 0)
    assert PagePool(2).match_prefix([]) == ([], 0)


def test_readers_share_whole_pages_while_they_are_computed() -> None:
    pages = PagePool(10)
    prompt = text(2 * PAGE_SIZE + 3)
    first, _ = admitted(pages, prompt)
    second, tokens = admitted(pages, prompt)
    assert tokens == 2 * PAGE_SIZE
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert pages.in_use == 4


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        (2 * PAGE_SIZE + 1, 2 * PAGE_SIZE),
        (2 * PAGE_SIZE, PAGE_SIZE),  # a whole page is not written into again, and one token must be computed
        (PAGE_SIZE + 1, PAGE_SIZE),
        (PAGE_SIZE, 0),
        (3, 0),
    ],
)
def test_whole_pages_are_reused_whole_and_one_token_is_left_to_compute(asked: int, tokens: int) -> None:
    pages = PagePool(4)
    used(pages, text(3 * PAGE_SIZE))
    assert found(pages, text(3 * PAGE_SIZE)[:asked]) == tokens


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        (60, PAGE_SIZE + 5),
        (PAGE_SIZE + 6, PAGE_SIZE + 5),
        (PAGE_SIZE + 5, PAGE_SIZE + 4),  # its last token is written again: nobody else reads a tail
        (PAGE_SIZE + 4, PAGE_SIZE),
    ],
)
def test_a_partly_filled_page_is_found_by_what_goes_on_with_it(asked: int, tokens: int) -> None:
    pages = PagePool(4)
    used(pages, text(PAGE_SIZE + 5))
    assert found(pages, text(60)[:asked]) == tokens


def test_a_lone_token_is_computed_again() -> None:
    pages = PagePool(2)
    used(pages, [5])
    assert found(pages, [5]) == 0
    assert found(pages, [5, 6]) == 1


def test_the_fullest_tail_is_claimed() -> None:
    pages = PagePool(6)
    for ids in (text(4), [7, 7, 7], text(9, seed=1)):
        used(pages, ids)
    held, _ = pages.match_prefix([])
    assert pages.allocate(held, 9)
    pages.release(held, text(9), 9)
    assert found(pages, text(12)) == 9


def test_a_tail_has_one_reader() -> None:
    pages = PagePool(6)
    ids = text(PAGE_SIZE + 5)
    page, tail = used(pages, ids)
    first, first_tokens = pages.match_prefix(text(60))
    second, second_tokens = pages.match_prefix(text(60))
    assert (first, first_tokens) == ([page, tail], PAGE_SIZE + 5)
    assert (second, second_tokens) == ([page], PAGE_SIZE)


def test_a_claimed_tail_becomes_a_whole_page() -> None:
    pages = PagePool(6)
    used(pages, text(PAGE_SIZE + 5))
    held, tokens = pages.match_prefix(text(60))
    assert pages.allocate(held, 60)
    for computed in range(tokens + 1, 2 * PAGE_SIZE + 1):
        assert found(pages, text(60)) == PAGE_SIZE
        pages.register(held, text(computed), computed - 1, computed)
    assert found(pages, text(60)) == 2 * PAGE_SIZE


def test_an_episode_pays_only_for_new_tokens() -> None:
    pages = PagePool(20)
    ids = text(37)
    for turn in range(1, 5):
        held, _ = admitted(pages, ids)
        pages.release(held, ids, len(ids) - 1)
        longer = ids + text(11, seed=turn)
        assert found(pages, longer) == len(ids) - 1
        ids = longer
    assert pages.in_use == 0


def test_the_first_page_of_a_content_stays_the_one_found() -> None:
    pages = PagePool(10)
    prompt = text(2 * PAGE_SIZE)
    first, _ = admitted(pages, prompt)
    second, _ = admitted(pages, prompt)
    assert first[0] == second[0]
    assert first[1] != second[1]
    third, _ = pages.match_prefix(text(40))
    assert third == first


def test_what_follows_a_private_page_is_found() -> None:
    pages = PagePool(10)
    first, _ = admitted(pages, text(2 * PAGE_SIZE))
    second, _ = admitted(pages, text(2 * PAGE_SIZE))
    assert pages.allocate(second, 3 * PAGE_SIZE)
    pages.register(second, text(3 * PAGE_SIZE), 2 * PAGE_SIZE, 3 * PAGE_SIZE)
    assert pages.match_prefix(text(60)) == ([*first, second[2]], 3 * PAGE_SIZE)


def test_a_private_page_takes_the_place_of_an_evicted_one() -> None:
    pages = PagePool(6)
    first, _ = admitted(pages, text(2 * PAGE_SIZE))
    second, _ = admitted(pages, text(2 * PAGE_SIZE), room=3 * PAGE_SIZE)
    pages.register(second, text(3 * PAGE_SIZE), 2 * PAGE_SIZE, 3 * PAGE_SIZE)
    pages.release(first, text(2 * PAGE_SIZE), 2 * PAGE_SIZE)
    other: list[int] = []
    assert pages.allocate(other, 3 * PAGE_SIZE)
    assert pages.free == 0
    assert found(pages, text(60)) == PAGE_SIZE
    pages.release(second, text(3 * PAGE_SIZE), 3 * PAGE_SIZE)
    assert pages.match_prefix(text(60)) == (second, 3 * PAGE_SIZE)


def test_a_private_page_is_blank_when_released() -> None:
    pages = PagePool(3)
    first, _ = admitted(pages, text(PAGE_SIZE))
    second, _ = admitted(pages, text(PAGE_SIZE))
    pages.release(first, text(PAGE_SIZE), PAGE_SIZE)
    pages.release(second, text(PAGE_SIZE), PAGE_SIZE)
    other: list[int] = []
    assert pages.allocate(other, 2 * PAGE_SIZE)
    assert second[0] in other
    assert found(pages, text(PAGE_SIZE + 1)) == PAGE_SIZE


def test_a_private_page_loses_its_content_with_its_reader() -> None:
    pages = PagePool(3)
    admitted(pages, text(PAGE_SIZE))
    second, _ = admitted(pages, text(PAGE_SIZE))
    pages.release(second, text(PAGE_SIZE), PAGE_SIZE)
    third, _ = admitted(pages, text(PAGE_SIZE, seed=1))
    assert third == second
    assert found(pages, [*text(PAGE_SIZE, seed=1), 0]) == PAGE_SIZE


def test_a_content_computed_anew_is_followed_by_what_followed_the_old_one_and_by_nothing_stale() -> None:
    pages = PagePool(5)
    first, _ = admitted(pages, text(PAGE_SIZE))
    second, _ = admitted(pages, text(PAGE_SIZE), room=2 * PAGE_SIZE)
    pages.register(second, text(2 * PAGE_SIZE), PAGE_SIZE, 2 * PAGE_SIZE)
    third, _ = admitted(pages, text(PAGE_SIZE))
    pages.release(first, text(PAGE_SIZE), PAGE_SIZE)
    other: list[int] = []
    assert pages.allocate(other, 2 * PAGE_SIZE)  # the page of `first` is evicted
    pages.release(other, [], 0)
    anew, tokens = admitted(pages, text(PAGE_SIZE))
    assert tokens == 0
    pages.release(second, text(2 * PAGE_SIZE), 2 * PAGE_SIZE)
    assert found(pages, text(40)) == 2 * PAGE_SIZE
    pages.release(anew, text(PAGE_SIZE), PAGE_SIZE)
    others: list[int] = []
    assert pages.allocate(others, 4 * PAGE_SIZE)  # all but the page of `third` are taken
    pages.release(third, text(PAGE_SIZE), PAGE_SIZE)
    assert pages.match_prefix(text(40)) == (third, PAGE_SIZE)


def test_pages_that_a_caller_did_not_tell_of_are_known_by_its_next_word() -> None:
    pages = PagePool(4)
    held, _ = pages.match_prefix(text(40))
    assert pages.allocate(held, 40)
    pages.register(held, text(40), PAGE_SIZE, 2 * PAGE_SIZE)
    assert found(pages, text(40)) == 2 * PAGE_SIZE


def test_who_releases_a_private_page_has_used_its_content() -> None:
    pages = PagePool(3)
    first, _ = admitted(pages, text(PAGE_SIZE))
    second, _ = admitted(pages, text(PAGE_SIZE))
    pages.release(first, text(PAGE_SIZE), PAGE_SIZE)
    used(pages, text(PAGE_SIZE, seed=1))
    pages.release(second, text(PAGE_SIZE), PAGE_SIZE)
    assert pages.allocate([], 2 * PAGE_SIZE)
    assert found(pages, text(PAGE_SIZE + 1)) == PAGE_SIZE


def test_the_same_tail_is_kept_once() -> None:
    pages = PagePool(4)
    first, _ = admitted(pages, text(5))
    second, _ = admitted(pages, text(5))
    pages.release(first, text(5), 5)
    pages.release(second, text(5), 5)
    assert pages.match_prefix(text(9)) == (first, 5)
    assert pages.match_prefix(text(9)) == ([], 0)


def test_the_least_recently_used_is_evicted_and_deep_pages_before_shallow_ones() -> None:
    pages = PagePool(6)
    older, newer = text(3 * PAGE_SIZE, seed=1), text(3 * PAGE_SIZE, seed=2)
    used(pages, newer)
    used(pages, older)
    held: list[int] = []
    left = []
    for room in range(1, 7):
        # To ask is to use: the one asked for last is the newer one.
        left.append((found(pages, [*older, 0]) // PAGE_SIZE, found(pages, [*newer, 0]) // PAGE_SIZE))
        assert pages.allocate(held, room * PAGE_SIZE)
    assert left == [(3, 3), (2, 3), (1, 3), (0, 3), (0, 2), (0, 1)]


def test_a_tail_is_evicted_before_the_pages_it_follows() -> None:
    pages = PagePool(3)
    used(pages, text(2 * PAGE_SIZE + 4))
    assert pages.allocate([], PAGE_SIZE)
    assert found(pages, text(60)) == 2 * PAGE_SIZE


def test_held_pages_are_never_evicted() -> None:
    pages = PagePool(4)
    used(pages, text(3 * PAGE_SIZE))
    held, _ = pages.match_prefix(text(2 * PAGE_SIZE + 1))
    other: list[int] = []
    assert not pages.allocate(other, 3 * PAGE_SIZE)
    assert pages.allocate(other, 2 * PAGE_SIZE)
    assert not set(held) & set(other)
    assert found(pages, text(60)) == 2 * PAGE_SIZE


def test_children_of_an_evicted_page_are_not_found_behind_its_successor() -> None:
    pages = PagePool(4)
    first, _ = admitted(pages, text(PAGE_SIZE))
    child, _ = admitted(pages, text(PAGE_SIZE), room=2 * PAGE_SIZE)
    pages.register(
        child, text(2 * PAGE_SIZE), PAGE_SIZE, 2 * PAGE_SIZE
    )  # it follows a content that the page of `first` stands for
    pages.release(first, text(PAGE_SIZE), PAGE_SIZE)
    assert pages.allocate([], PAGE_SIZE)
    other: list[int] = []
    assert pages.allocate(other, PAGE_SIZE)
    assert other == first
    elsewhere = text(PAGE_SIZE, seed=9)
    pages.register(other, elsewhere, 0, PAGE_SIZE)
    assert found(pages, elsewhere + text(40)[PAGE_SIZE:]) == PAGE_SIZE
    assert found(pages, text(40)) == 0


def test_the_same_tokens_after_another_beginning_are_another_content() -> None:
    pages = PagePool(8)
    middle = text(PAGE_SIZE, seed=5)
    used(pages, text(PAGE_SIZE, seed=1) + middle)
    assert found(pages, [*text(PAGE_SIZE, seed=2), *middle, 0]) == 0
    assert found(pages, [*middle, 0]) == 0


def test_pages_beyond_what_was_computed_are_not_found() -> None:
    pages = PagePool(6)
    ids = text(3 * PAGE_SIZE)
    held, _ = admitted(pages, ids)
    pages.release(held, ids, PAGE_SIZE + 4)
    assert pages.in_use == 0
    assert found(pages, text(60)) == PAGE_SIZE + 4
    other, tokens = pages.match_prefix(text(60))
    assert pages.allocate(other, 60)
    pages.register(other, text(60), tokens, 60)
    pages.release(other, text(60), 0)
    assert pages.free == 6
    assert found(pages, text(60)) == 0


def test_an_unused_claim_is_given_back_as_it_was() -> None:
    pages = PagePool(4)
    ids = text(2 * PAGE_SIZE + 5)
    used(pages, ids)
    held, tokens = pages.match_prefix(text(60))
    pages.release(held, text(60), tokens)
    assert pages.match_prefix(text(60)) == (held, 2 * PAGE_SIZE + 5)


def test_forgotten_contents_are_not_found_and_pages_come_in_rising_order_again() -> None:
    pages = PagePool(5)
    used(pages, text(40))
    used(pages, text(PAGE_SIZE, seed=1))
    pages.invalidate()
    assert found(pages, text(60)) == 0
    held: list[int] = []
    assert pages.allocate(held, 5 * PAGE_SIZE)
    assert held == [0, 1, 2, 3, 4]


def test_what_was_held_when_all_was_forgotten_is_never_found() -> None:
    pages = PagePool(8)
    ids = text(2 * PAGE_SIZE + 3)
    one, _ = admitted(pages, ids)
    two, _ = admitted(pages, ids)
    pages.invalidate()
    assert pages.in_use == 4
    assert pages.allocate(one, 4 * PAGE_SIZE)
    pages.register(one, text(4 * PAGE_SIZE), 2 * PAGE_SIZE + 3, 4 * PAGE_SIZE)
    assert found(pages, text(70)) == 0
    pages.release(one, text(4 * PAGE_SIZE), 4 * PAGE_SIZE)
    assert found(pages, text(70)) == 0
    pages.release(two, ids, len(ids))
    assert found(pages, text(70)) == 0
    assert pages.free == 8


def test_a_tail_that_was_held_when_all_was_forgotten_is_never_found() -> None:
    pages = PagePool(2)
    held, _ = admitted(pages, text(5))
    pages.invalidate()
    pages.release(held, text(5), 5)
    assert found(pages, text(9)) == 0


def test_what_is_computed_after_forgetting_is_found_even_in_pages_that_were_stale() -> None:
    pages = PagePool(3)
    held, _ = admitted(pages, text(40))
    pages.invalidate()
    pages.release(held, text(40), 40)
    used(pages, text(40))
    assert found(pages, text(60)) == 40


def test_a_second_release_is_an_error() -> None:
    pages = PagePool(2)
    held = used(pages, text(PAGE_SIZE))
    with pytest.raises(EngineFailure, match="page 0"):
        pages.release(held, text(PAGE_SIZE), PAGE_SIZE)


def test_a_thousand_prompts_are_begun_quickly() -> None:
    dice = random.Random(0)
    prompts = [[dice.randrange(50_000) for _ in range(300)] for _ in range(1024)]
    pages = PagePool(1024 * 20)
    for ids in prompts:
        used(pages, ids)
    before = time.process_time()
    claimed = [pages.match_prefix(ids) for ids in prompts]
    assert time.process_time() - before < 0.1
    assert {tokens for _, tokens in claimed} == {299}
