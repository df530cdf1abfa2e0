"""Which episodes have a valid form: turns of the form their protocol asks for, searches and then an answer."""

from collections.abc import Callable

import pytest

from sleuth.records import Malformed, Outcome, StopReason, ToolCall, Trajectory, Turn
from sleuth.reward.rubric import count_answer_tags, has_valid_format

Make = Callable[..., Turn]
Play = Callable[..., Trajectory]

SEARCH = "<think>look</think><search>capital</search>"


def test_an_answer_after_thinking_is_valid(play: Play, answered: Make) -> None:
    assert has_valid_format(play(answered("Oslo")))


def test_searches_before_the_answer_are_valid(play: Play, searched: Make, answered: Make) -> None:
    assert has_valid_format(play(searched("a"), searched("b"), answered("Oslo")))


def test_a_turn_out_of_form_is_not(play: Play, searched: Make, answered: Make) -> None:
    assert not has_valid_format(play(searched("a"), answered("Oslo", formed=False)))
    assert not has_valid_format(play(searched("a", formed=False), answered("Oslo")))


@pytest.mark.parametrize(
    ("action", "outcome"),
    [(ToolCall.search("capital"), Outcome.REFUSED), (Malformed("the query is empty"), Outcome.CORRECTED)],
)
def test_a_search_that_brought_no_information_is_not(
    play: Play, answered: Make, action: ToolCall | Malformed, outcome: Outcome
) -> None:
    assert not has_valid_format(play(Turn(SEARCH, action, outcome, 5), answered("Oslo")))


def test_an_episode_without_an_answer_is_not(play: Play, searched: Make) -> None:
    assert not has_valid_format(play(searched("a"), stop=StopReason.OUT_OF_TURNS))
    assert not has_valid_format(play(stop=StopReason.OUT_OF_TOKENS))


def test_answer_tags_are_counted_in_sampled_text_only(play: Play, searched: Make, answered: Make) -> None:
    crowded = answered("Oslo", "<answer><answer><answer>Oslo</answer>")
    assert count_answer_tags(play(searched("<answer>Bergen</answer>"), crowded)) == 3
