"""The quickstart's tokenizer: known words whole, anything else by its bytes, nothing lost."""

import pytest

from sleuth.model.tokens import Tokens
from sleuth.sft.quickstart_tokenizer import END, PAD, tokenizer

TEXTS = ["Question: Who founded Umbra Trust?\n", "<think> It was 1962. </think> <search> Umbra </search>"]


@pytest.fixture(scope="module")
def known() -> Tokens:
    return Tokens(tokenizer(TEXTS))


@pytest.mark.parametrize("text", [" Umbra Trust", " Umbra", " 1962", " </search>", "Question: Who"])
def test_known_words_are_one_token_each(text: str, known: Tokens) -> None:
    pieces = [known.decode([token]) for token in known.encode(text)]
    assert "".join(pieces) == text
    assert all(len(piece.split()) == 1 for piece in pieces)
    assert len(pieces) <= len(text.split()) + text.count(":")


@pytest.mark.parametrize(
    "text",
    ["", "Zanzibar", "naïve — 東京 🜁", "a\n\n\tb", "1962x", "<unknown>", f"{END}{PAD}", " double  space ", "x" * 300],
)
def test_any_text_comes_back(text: str, known: Tokens) -> None:
    assert known.decode(known.encode(text)) == text


def test_special_tokens_end_and_pad(known: Tokens) -> None:
    assert known.eos_id == known.tokenizer.convert_tokens_to_ids(END) == 1
    assert known.tokenizer.pad_token_id == known.tokenizer.convert_tokens_to_ids(PAD) == 0
    assert known.eos_id not in known.encode(END)


def test_words_are_numbered_in_order_so_that_any_process_numbers_them_alike(known: Tokens) -> None:
    numbers = known.tokenizer.get_vocab()
    words = sorted(numbers, key=numbers.__getitem__)[2 + 256 :]
    assert len(words) > 10
    assert words == sorted(words)
    assert tokenizer(TEXTS[::-1]).get_vocab() == numbers
