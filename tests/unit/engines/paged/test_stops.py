"""Stop strings are found after the token that completes them, never later and never without cause."""

from collections.abc import Callable, Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sleuth.engines.paged.stops import Stops
from sleuth.model.tokens import Tokens

TAGS = ("</search>", "</answer>")


def ended(tokens: Tokens, ids: Sequence[int], stops: tuple[str, ...], given: int = 0) -> tuple[int, str] | None:
    """After how many tokens a stop is matched, and which; as an engine asks, token by token."""
    finder = Stops(tokens)
    for count in range(given + 1, len(ids) + 1):
        if (stop := finder.matched(ids[:count], given, stops)) is not None:
            return count, stop
    return None


def test_a_tag_that_is_one_token(tokens: Tokens) -> None:
    ids = tokens.encode("<search> Ada </search> Oslo")
    assert ended(tokens, ids, TAGS) == (3, "</search>")


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        (["a", "</", "search", ">", "b"], (4, "</search>")),
        (["a</search", ">b"], (2, "</search>")),
        (["a</search>b", "c"], (1, "</search>")),
        (["</", "search", "</search", ">"], (4, "</search>")),
        (["</search", "x", ">"], None),
        (["</sea", "rch></ans", "wer>"], (2, "</search>")),
        (["x</answer></search>y"], (1, "</answer>")),
        (["x</search></answer>y"], (1, "</search>")),
    ],
)
def test_across_tokens(
    spelled: Callable[[Sequence[str]], Tokens], pieces: list[str], found: tuple[int, str] | None
) -> None:
    tokens = spelled(["<|end|>", *dict.fromkeys(pieces)])
    vocabulary = tokens.tokenizer.get_vocab()
    assert ended(tokens, [vocabulary[piece] for piece in pieces], TAGS) == found


def test_only_sampled_tokens_count(spelled: Callable[[Sequence[str]], Tokens]) -> None:
    tokens = spelled(["<|end|>", "</search", ">"])
    assert ended(tokens, [1, 2, 1, 2], TAGS, given=2) == (4, "</search>")
    assert ended(tokens, [1, 2], TAGS, given=1) is None


def test_of_stops_that_end_together_one_is_named(spelled: Callable[[Sequence[str]], Tokens]) -> None:
    tokens = spelled(["<|end|>", "abc"])
    assert ended(tokens, [1], ("bc", "abc")) == (1, "abc")


def test_no_stops(tokens: Tokens) -> None:
    assert ended(tokens, tokens.encode("a b c"), ()) is None


def test_a_character_of_several_tokens(tokens: Tokens) -> None:
    """Its last byte completes it, and is text only together with the others."""
    ids = tokens.encode("x東y")
    assert len(ids) == 5
    assert ended(tokens, ids, ("東",)) == (4, "東")


def test_an_id_beyond_the_tokenizer_completes_nothing(tokens: Tokens) -> None:
    """Models often have more rows in their embedding than the tokenizer has tokens."""
    beyond = len(tokens.tokenizer) + 5
    assert ended(tokens, [*tokens.encode("a"), beyond], TAGS) is None
    assert ended(tokens, [beyond, *tokens.encode(" </search>")], TAGS) == (2, "</search>")


def test_white_space_that_a_decoder_drops_at_the_beginning() -> None:
    vocabulary = {"<unk>": 0, "\u2581one": 1, "\u2581two": 2, "\u2581": 3}
    backend = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokens = Tokens(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert tokens.decode([1, 2]) == "one two"
    assert tokens.texts()[2] == "two"
    assert ended(tokens, [1, 2], ("one ",)) == (2, "one ")
