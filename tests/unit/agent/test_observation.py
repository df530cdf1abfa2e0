"""Observations: what is cut where there is no room for all of it."""

from sleuth.agent.observation import Observation
from sleuth.model.tokens import Tokens


def test_a_body_that_is_cut_keeps_its_beginning_and_the_frame(tokens: Tokens) -> None:
    shown = Observation("<information>", "Ada was born in London and lived in Oslo.", "</information>")
    (first, last), body = shown.frame_ids(tokens), tokens.encode(shown.escaped_body)
    assert shown.ids(tokens, len(first) + 2 + len(last)) == [*first, *body[:2], *last]
    assert body[:2] != body[-2:]
