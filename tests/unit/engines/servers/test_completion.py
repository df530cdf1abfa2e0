"""Finish reasons of completions, where the text and the server disagree."""

import pytest

from sleuth.engines.base import Finish, Sampling
from sleuth.engines.servers.completion import Chunk, PartialCompletion
from sleuth.model.tokens import StopStrings, Tokens

STOPS = ("</search>", "</answer>")


def ended(tokens: Tokens, text: str, stop: str | None) -> tuple[Finish, str | None]:
    """How a draft says that it ended, of which the server says `stop`."""
    ids = tokens.encode(text)
    sampling = Sampling(100, stops=STOPS)
    partial = PartialCompletion(tokens.encode("Who?"), sampling, context=200, stops=StopStrings(tokens))
    partial.add(Chunk(tuple(ids), (0.0,) * len(ids), "stop", stop), 0)
    completion = partial.completion()
    return completion.finish, completion.stop


@pytest.mark.parametrize("said", STOPS)
def test_the_first_of_two_stops_in_the_text_wins(tokens: Tokens, said: str) -> None:
    assert ended(tokens, "<answer> Lisbon </answer></search>", said) == (Finish.STOP, "</answer>")


def test_a_stop_reported_only_by_the_server_is_accepted(tokens: Tokens) -> None:
    assert ended(tokens, "<answer> Lisbon", "</answer>") == (Finish.STOP, "</answer>")


def test_a_finish_without_a_stop_string_is_end_of_text(tokens: Tokens) -> None:
    assert ended(tokens, "<answer> Lisbon", None) == (Finish.END, None)
