"""Text is told as tokens come, in whole characters."""

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from sleuth.agent.conversation import TextStream
from sleuth.model.tokens import Tokens


def told(tokens: Tokens, ids: list[int], step: int) -> list[str]:
    heard: list[str] = []
    speech = TextStream(tokens, heard.append)
    for start in range(0, len(ids), step):
        speech.add(ids[start : start + step])
    return heard


@pytest.mark.parametrize("step", [1, 2, 3, 50])
def test_pieces_make_the_whole_and_no_character_is_broken(tokens: Tokens, step: int) -> None:
    text = "Who wrote 東京 🗺 in Oslo? <answer> Łódź </answer>"
    heard = told(tokens, tokens.encode(text), step)
    assert "".join(heard) == text
    assert "" not in heard
    assert not any("\ufffd" in piece for piece in heard)


def test_special_tokens_are_not_told(tokens: Tokens) -> None:
    assert told(tokens, tokens.encode_trusted("Who<|end|>"), 1)[-1] == "o"


def test_spaces_between_turns_of_a_decoder_that_drops_the_first() -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "\u2581one": 1, "\u2581two": 2}, "<unk>"))
    backend.decoder = decoders.Metaspace()
    tokens = Tokens(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert told(tokens, [1, 2, 1], 1) == ["one", " two", " one"]
