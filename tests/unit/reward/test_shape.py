"""Which episodes have the form think, (search, information, think)*, answer."""

from collections.abc import Callable

import pytest

from sleuth.records import Malformed, Outcome, Search, StopReason, Trajectory, Turn
from sleuth.reward.shape import answer_tags, valid

Make = Callable[..., Turn]
Play = Callable[..., Trajectory]

SEARCH = "<think>look</think><search>capital</search>"


def test_an_answer_after_thinking_is_valid(play: Play, answered: Make) -> None:
    assert valid(play(answered("Oslo")))


def test_searches_before_the_answer_are_valid(play: Play, searched: Make, answered: Make) -> None:
    assert valid(play(searched("a"), searched("b", text=f"\n\n{SEARCH}\n"), answered("Oslo")))


@pytest.mark.parametrize(
    "text",
    [
        "<think>so</think>\n\n<answer>Oslo</answer>",
        "  <think>so\nit < seems</think> <answer>Oslo</answer>\n",
        "<think></think><answer>Oslo</answer>",
        "<think>a <b>bold</b> thought</think><answer>Oslo</answer>",
    ],
)
def test_white_space_and_foreign_tags_do_no_harm(play: Play, answered: Make, text: str) -> None:
    assert valid(play(answered("Oslo", text)))


@pytest.mark.parametrize(
    "text",
    [
        "<answer>Oslo</answer>",
        "so <think>so</think><answer>Oslo</answer>",
        "<think>so</think> then <answer>Oslo</answer>",
        "<think>so</think><answer>Oslo</answer> done",
        "<think>so</think><think>and</think><answer>Oslo</answer>",
        "<think>so <answer>Oslo</answer></think><answer>Oslo</answer>",
        "<think>so</think><answer><search>Oslo</search></answer>",
        "<think>so</think><answer>Oslo</answer><answer>Oslo</answer>",
        "<think>so</think><information>Oslo</information><answer>Oslo</answer>",
        "<think>so<answer>Oslo</answer>",
        "so</think><answer>Oslo</answer>",
        "<think>so</think><answer>Oslo",
        "<Think>so</Think><answer>Oslo</answer>",
        f"{SEARCH}<information>Oslo</information><think>so</think><answer>Oslo</answer>",
    ],
)
def test_anything_else_in_the_last_turn_is_not(play: Play, answered: Make, text: str) -> None:
    assert not valid(play(answered("Oslo", text)))


@pytest.mark.parametrize(
    "text",
    [
        "<search>capital</search>",
        "<think>look</think><answer>Oslo</answer>",
        f"{SEARCH}<search>capital</search>",
        f"{SEARCH}\n<information>Oslo</information>",
        f"{SEARCH} please",
    ],
)
def test_anything_else_in_a_searching_turn_is_not(play: Play, searched: Make, answered: Make, text: str) -> None:
    assert not valid(play(searched("a", text=text), answered("Oslo")))


@pytest.mark.parametrize(
    ("action", "outcome"),
    [(Search("capital"), Outcome.REFUSED), (Malformed("the query is empty"), Outcome.CORRECTED)],
)
def test_a_search_that_brought_no_information_is_not(
    play: Play, answered: Make, action: Search | Malformed, outcome: Outcome
) -> None:
    assert not valid(play(Turn(SEARCH, action, outcome, 5), answered("Oslo")))


def test_an_episode_without_an_answer_is_not(play: Play, searched: Make) -> None:
    assert not valid(play(searched("a"), stop=StopReason.OUT_OF_TURNS))
    assert not valid(play(stop=StopReason.OUT_OF_TOKENS))


def test_answer_tags_are_counted_in_sampled_text_only(play: Play, searched: Make, answered: Make) -> None:
    crowded = answered("Oslo", "<answer><answer><answer>Oslo</answer>")
    assert answer_tags(play(searched("<answer>Bergen</answer>"), crowded)) == 3
