"""A completion on its way: what ended it is told by its text, where a server's word will not do."""

import pytest

from sleuth.engines.base import Finish, Sampling
from sleuth.engines.paged.stops import Stops
from sleuth.engines.vllm.draft import Draft
from sleuth.engines.vllm.message import Piece
from sleuth.model.tokens import Tokens

STOPS = ("</search>", "</answer>")


def ended(tokens: Tokens, text: str, stop: str | None) -> tuple[Finish, str | None]:
    """How a draft says that it ended, of which the server says `stop`."""
    ids = tokens.encode(text)
    draft = Draft(tokens.encode("Who?"), Sampling(100, stops=STOPS), context=200, stops=Stops(tokens))
    draft.add(Piece(tuple(ids), (0.0,) * len(ids), "stop", stop), 0)
    completion = draft.completion()
    return completion.finish, completion.stop


@pytest.mark.parametrize("said", STOPS)
def test_of_two_stops_the_one_that_stands_first_in_the_text_ended_it(tokens: Tokens, said: str) -> None:
    assert ended(tokens, "<answer> Lisbon </answer></search>", said) == (Finish.STOP, "</answer>")


def test_a_stop_that_only_the_server_sees_is_taken_at_its_word(tokens: Tokens) -> None:
    assert ended(tokens, "<answer> Lisbon", "</answer>") == (Finish.STOP, "</answer>")


def test_an_end_without_a_stop_is_the_end_of_the_text(tokens: Tokens) -> None:
    assert ended(tokens, "<answer> Lisbon", None) == (Finish.END, None)
