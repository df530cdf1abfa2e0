"""What a turn thinks, however it is cut into pieces."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.agent.function_calls import FunctionCalls
from sleuth.agent.tags import Tags
from sleuth.model.tokens import Tokens
from sleuth.serve.agent.live_episode import ReasoningParser, action_prefixes

TAGGED = ("<search>", "<answer>")
PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<search>", "<", "</th", "a < b", " ", "\n", "Oslo", "</answer>"])
)


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("<think> I need Ada. </think> <search> Ada </search>", "I need Ada."),
        ("No tags at all, and <answer> Oslo </answer>", "No tags at all, and"),
        ("<answer> Oslo </answer>", ""),
        ("<think> a < b </think> and nothing", "a < b  and nothing"),
    ],
)
def test_a_thought_ends_where_an_action_begins(text: str, thought: str) -> None:
    assert ReasoningParser(TAGGED).extract(text) == thought


@settings(max_examples=150)
@given(PIECES)
def test_pieces_add_up_to_the_whole(pieces: list[str]) -> None:
    thoughts = ReasoningParser(TAGGED)
    error_body = [thoughts.feed(piece) for piece in pieces]
    assert "".join([*error_body, thoughts.finish("".join(pieces))]) == thoughts.extract("".join(pieces))


def test_actions_of_every_grammar_are_known(speaker: Callable[..., Tokens]) -> None:
    assert action_prefixes(Tags()) == TAGGED
    assert action_prefixes(FunctionCalls(speaker("hermes"))) == ("<tool_call>", "<answer>")
    assert action_prefixes(FunctionCalls(speaker("llama"))) == ('{"name":', "<answer>")
