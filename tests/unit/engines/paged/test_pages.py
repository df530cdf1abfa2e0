"""Pages: which are claimed, shared, kept, evicted and forgotten."""

import random
import time
from collections.abc import Sequence

import pytest

from sleuth.engines.paged.pages import PAGE, Pages
from sleuth.errors import EngineFailure


def text(tokens: int, seed: int = 0) -> list[int]:
    """So many tokens, like no other text's."""
    return [1000 * seed + place for place in range(tokens)]


def admitted(pages: Pages, ids: Sequence[int], room: int = 0) -> tuple[list[int], int]:
    """The pages of a sequence whose prompt is being computed, and how many tokens were found."""
    held, found = pages.begin(ids)
    assert pages.extend(held, max(len(ids), room))
    pages.fill(held, ids, found, len(ids))
    return held, found


def used(pages: Pages, ids: Sequence[int]) -> list[int]:
    """The pages of a sequence that has come and gone, all of it computed."""
    held, _ = admitted(pages, ids)
    pages.release(held, ids, len(ids))
    return held


def found(pages: Pages, ids: Sequence[int]) -> int:
    """How many tokens would be found; leaves everything as it was, but for the order of eviction."""
    held, tokens = pages.begin(ids)
    pages.release(held, ids, tokens)
    return tokens


def test_fresh_pages_come_in_rising_order() -> None:
    pages = Pages(4)
    held: list[int] = []
    assert pages.extend(held, PAGE + 1)
    assert pages.extend(held, 2 * PAGE)
    assert pages.extend(held, 2 * PAGE + 1)
    assert (held, pages.free, pages.held) == ([0, 1, 2], 1, 3)


def test_too_few_pages_change_nothing() -> None:
    pages = Pages(3)
    used(pages, text(PAGE))
    held: list[int] = []
    assert pages.extend(held, PAGE)
    assert not pages.extend(held, 4 * PAGE)
    assert (len(held), pages.free) == (1, 2)
    assert found(pages, text(PAGE + 1)) == PAGE


def test_nothing_is_found_at_first() -> None:
    assert Pages(2).begin(text(40)) == ([], 0)
    assert Pages(2).begin([]) == ([], 0)


def test_readers_share_whole_pages_while_they_are_computed() -> None:
    pages = Pages(10)
    prompt = text(2 * PAGE + 3)
    first, _ = admitted(pages, prompt)
    second, tokens = admitted(pages, prompt)
    assert tokens == 2 * PAGE
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert pages.held == 4


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        (2 * PAGE + 1, 2 * PAGE),
        (2 * PAGE, PAGE),  # a whole page is not written into again, and one token must be computed
        (PAGE + 1, PAGE),
        (PAGE, 0),
        (3, 0),
    ],
)
def test_whole_pages_are_reused_whole_and_one_token_is_left_to_compute(asked: int, tokens: int) -> None:
    pages = Pages(4)
    used(pages, text(3 * PAGE))
    assert found(pages, text(3 * PAGE)[:asked]) == tokens


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        (60, PAGE + 5),
        (PAGE + 6, PAGE + 5),
        (PAGE + 5, PAGE + 4),  # its last token is written again: nobody else reads a tail
        (PAGE + 4, PAGE),
    ],
)
def test_a_partly_filled_page_is_found_by_what_goes_on_with_it(asked: int, tokens: int) -> None:
    pages = Pages(4)
    used(pages, text(PAGE + 5))
    assert found(pages, text(60)[:asked]) == tokens


def test_a_lone_token_is_computed_again() -> None:
    pages = Pages(2)
    used(pages, [5])
    assert found(pages, [5]) == 0
    assert found(pages, [5, 6]) == 1


def test_the_fullest_tail_is_claimed() -> None:
    pages = Pages(6)
    for ids in (text(4), [7, 7, 7], text(9, seed=1)):
        used(pages, ids)
    held, _ = pages.begin([])
    assert pages.extend(held, 9)
    pages.release(held, text(9), 9)
    assert found(pages, text(12)) == 9


def test_a_tail_has_one_reader() -> None:
    pages = Pages(6)
    ids = text(PAGE + 5)
    page, tail = used(pages, ids)
    first, first_tokens = pages.begin(text(60))
    second, second_tokens = pages.begin(text(60))
    assert (first, first_tokens) == ([page, tail], PAGE + 5)
    assert (second, second_tokens) == ([page], PAGE)


def test_a_claimed_tail_becomes_a_whole_page() -> None:
    pages = Pages(6)
    used(pages, text(PAGE + 5))
    held, tokens = pages.begin(text(60))
    assert pages.extend(held, 60)
    for computed in range(tokens + 1, 2 * PAGE + 1):
        assert found(pages, text(60)) == PAGE
        pages.fill(held, text(computed), computed - 1, computed)
    assert found(pages, text(60)) == 2 * PAGE


def test_an_episode_pays_only_for_new_tokens() -> None:
    pages = Pages(20)
    ids = text(37)
    for turn in range(1, 5):
        held, _ = admitted(pages, ids)
        pages.release(held, ids, len(ids) - 1)
        longer = ids + text(11, seed=turn)
        assert found(pages, longer) == len(ids) - 1
        ids = longer
    assert pages.held == 0


def test_the_first_page_of_a_content_stays_the_one_found() -> None:
    pages = Pages(10)
    prompt = text(2 * PAGE)
    first, _ = admitted(pages, prompt)
    second, _ = admitted(pages, prompt)
    assert first[0] == second[0]
    assert first[1] != second[1]
    third, _ = pages.begin(text(40))
    assert third == first


def test_what_follows_a_private_page_is_found() -> None:
    pages = Pages(10)
    first, _ = admitted(pages, text(2 * PAGE))
    second, _ = admitted(pages, text(2 * PAGE))
    assert pages.extend(second, 3 * PAGE)
    pages.fill(second, text(3 * PAGE), 2 * PAGE, 3 * PAGE)
    assert pages.begin(text(60)) == ([*first, second[2]], 3 * PAGE)


def test_a_private_page_takes_the_place_of_an_evicted_one() -> None:
    pages = Pages(6)
    first, _ = admitted(pages, text(2 * PAGE))
    second, _ = admitted(pages, text(2 * PAGE), room=3 * PAGE)
    pages.fill(second, text(3 * PAGE), 2 * PAGE, 3 * PAGE)
    pages.release(first, text(2 * PAGE), 2 * PAGE)
    other: list[int] = []
    assert pages.extend(other, 3 * PAGE)
    assert pages.free == 0
    assert found(pages, text(60)) == PAGE
    pages.release(second, text(3 * PAGE), 3 * PAGE)
    assert pages.begin(text(60)) == (second, 3 * PAGE)


def test_a_private_page_is_blank_when_released() -> None:
    pages = Pages(3)
    first, _ = admitted(pages, text(PAGE))
    second, _ = admitted(pages, text(PAGE))
    pages.release(first, text(PAGE), PAGE)
    pages.release(second, text(PAGE), PAGE)
    other: list[int] = []
    assert pages.extend(other, 2 * PAGE)
    assert second[0] in other
    assert found(pages, text(PAGE + 1)) == PAGE


def test_a_private_page_loses_its_content_with_its_reader() -> None:
    pages = Pages(3)
    admitted(pages, text(PAGE))
    second, _ = admitted(pages, text(PAGE))
    pages.release(second, text(PAGE), PAGE)
    third, _ = admitted(pages, text(PAGE, seed=1))
    assert third == second
    assert found(pages, [*text(PAGE, seed=1), 0]) == PAGE


def test_a_content_computed_anew_is_followed_by_what_followed_the_old_one_and_by_nothing_stale() -> None:
    pages = Pages(5)
    first, _ = admitted(pages, text(PAGE))
    second, _ = admitted(pages, text(PAGE), room=2 * PAGE)
    pages.fill(second, text(2 * PAGE), PAGE, 2 * PAGE)
    third, _ = admitted(pages, text(PAGE))
    pages.release(first, text(PAGE), PAGE)
    other: list[int] = []
    assert pages.extend(other, 2 * PAGE)  # the page of `first` is evicted
    pages.release(other, [], 0)
    anew, tokens = admitted(pages, text(PAGE))
    assert tokens == 0
    pages.release(second, text(2 * PAGE), 2 * PAGE)
    assert found(pages, text(40)) == 2 * PAGE
    pages.release(anew, text(PAGE), PAGE)
    others: list[int] = []
    assert pages.extend(others, 4 * PAGE)  # all but the page of `third` are taken
    pages.release(third, text(PAGE), PAGE)
    assert pages.begin(text(40)) == (third, PAGE)


def test_pages_that_a_caller_did_not_tell_of_are_known_by_its_next_word() -> None:
    pages = Pages(4)
    held, _ = pages.begin(text(40))
    assert pages.extend(held, 40)
    pages.fill(held, text(40), PAGE, 2 * PAGE)
    assert found(pages, text(40)) == 2 * PAGE


def test_who_releases_a_private_page_has_used_its_content() -> None:
    pages = Pages(3)
    first, _ = admitted(pages, text(PAGE))
    second, _ = admitted(pages, text(PAGE))
    pages.release(first, text(PAGE), PAGE)
    used(pages, text(PAGE, seed=1))
    pages.release(second, text(PAGE), PAGE)
    assert pages.extend([], 2 * PAGE)
    assert found(pages, text(PAGE + 1)) == PAGE


def test_the_same_tail_is_kept_once() -> None:
    pages = Pages(4)
    first, _ = admitted(pages, text(5))
    second, _ = admitted(pages, text(5))
    pages.release(first, text(5), 5)
    pages.release(second, text(5), 5)
    assert pages.begin(text(9)) == (first, 5)
    assert pages.begin(text(9)) == ([], 0)


def test_the_least_recently_used_is_evicted_and_deep_pages_before_shallow_ones() -> None:
    pages = Pages(6)
    older, newer = text(3 * PAGE, seed=1), text(3 * PAGE, seed=2)
    used(pages, newer)
    used(pages, older)
    held: list[int] = []
    left = []
    for room in range(1, 7):
        # To ask is to use: the one asked for last is the newer one.
        left.append((found(pages, [*older, 0]) // PAGE, found(pages, [*newer, 0]) // PAGE))
        assert pages.extend(held, room * PAGE)
    assert left == [(3, 3), (2, 3), (1, 3), (0, 3), (0, 2), (0, 1)]


def test_a_tail_is_evicted_before_the_pages_it_follows() -> None:
    pages = Pages(3)
    used(pages, text(2 * PAGE + 4))
    assert pages.extend([], PAGE)
    assert found(pages, text(60)) == 2 * PAGE


def test_held_pages_are_never_evicted() -> None:
    pages = Pages(4)
    used(pages, text(3 * PAGE))
    held, _ = pages.begin(text(2 * PAGE + 1))
    other: list[int] = []
    assert not pages.extend(other, 3 * PAGE)
    assert pages.extend(other, 2 * PAGE)
    assert not set(held) & set(other)
    assert found(pages, text(60)) == 2 * PAGE


def test_children_of_an_evicted_page_are_not_found_behind_its_successor() -> None:
    pages = Pages(4)
    first, _ = admitted(pages, text(PAGE))
    child, _ = admitted(pages, text(PAGE), room=2 * PAGE)
    pages.fill(child, text(2 * PAGE), PAGE, 2 * PAGE)  # it follows a content that the page of `first` stands for
    pages.release(first, text(PAGE), PAGE)
    assert pages.extend([], PAGE)
    other: list[int] = []
    assert pages.extend(other, PAGE)
    assert other == first
    elsewhere = text(PAGE, seed=9)
    pages.fill(other, elsewhere, 0, PAGE)
    assert found(pages, elsewhere + text(40)[PAGE:]) == PAGE
    assert found(pages, text(40)) == 0


def test_the_same_tokens_after_another_beginning_are_another_content() -> None:
    pages = Pages(8)
    middle = text(PAGE, seed=5)
    used(pages, text(PAGE, seed=1) + middle)
    assert found(pages, [*text(PAGE, seed=2), *middle, 0]) == 0
    assert found(pages, [*middle, 0]) == 0


def test_pages_beyond_what_was_computed_are_not_found() -> None:
    pages = Pages(6)
    ids = text(3 * PAGE)
    held, _ = admitted(pages, ids)
    pages.release(held, ids, PAGE + 4)
    assert pages.held == 0
    assert found(pages, text(60)) == PAGE + 4
    other, tokens = pages.begin(text(60))
    assert pages.extend(other, 60)
    pages.fill(other, text(60), tokens, 60)
    pages.release(other, text(60), 0)
    assert pages.free == 6
    assert found(pages, text(60)) == 0


def test_an_unused_claim_is_given_back_as_it_was() -> None:
    pages = Pages(4)
    ids = text(2 * PAGE + 5)
    used(pages, ids)
    held, tokens = pages.begin(text(60))
    pages.release(held, text(60), tokens)
    assert pages.begin(text(60)) == (held, 2 * PAGE + 5)


def test_forgotten_contents_are_not_found_and_pages_come_in_rising_order_again() -> None:
    pages = Pages(5)
    used(pages, text(40))
    used(pages, text(PAGE, seed=1))
    pages.forget()
    assert found(pages, text(60)) == 0
    held: list[int] = []
    assert pages.extend(held, 5 * PAGE)
    assert held == [0, 1, 2, 3, 4]


def test_what_was_held_when_all_was_forgotten_is_never_found() -> None:
    pages = Pages(8)
    ids = text(2 * PAGE + 3)
    one, _ = admitted(pages, ids)
    two, _ = admitted(pages, ids)
    pages.forget()
    assert pages.held == 4
    assert pages.extend(one, 4 * PAGE)
    pages.fill(one, text(4 * PAGE), 2 * PAGE + 3, 4 * PAGE)
    assert found(pages, text(70)) == 0
    pages.release(one, text(4 * PAGE), 4 * PAGE)
    assert found(pages, text(70)) == 0
    pages.release(two, ids, len(ids))
    assert found(pages, text(70)) == 0
    assert pages.free == 8


def test_a_tail_that_was_held_when_all_was_forgotten_is_never_found() -> None:
    pages = Pages(2)
    held, _ = admitted(pages, text(5))
    pages.forget()
    pages.release(held, text(5), 5)
    assert found(pages, text(9)) == 0


def test_what_is_computed_after_forgetting_is_found_even_in_pages_that_were_stale() -> None:
    pages = Pages(3)
    held, _ = admitted(pages, text(40))
    pages.forget()
    pages.release(held, text(40), 40)
    used(pages, text(40))
    assert found(pages, text(60)) == 40


def test_a_second_release_is_an_error() -> None:
    pages = Pages(2)
    held = used(pages, text(PAGE))
    with pytest.raises(EngineFailure, match="page 0 was released, but nobody holds it"):
        pages.release(held, text(PAGE), PAGE)


def test_a_thousand_prompts_are_begun_quickly() -> None:
    dice = random.Random(0)
    prompts = [[dice.randrange(50_000) for _ in range(300)] for _ in range(1024)]
    pages = Pages(1024 * 20)
    for ids in prompts:
        used(pages, ids)
    before = time.process_time()
    claimed = [pages.begin(ids) for ids in prompts]
    assert time.process_time() - before < 0.1
    assert {tokens for _, tokens in claimed} == {299}
