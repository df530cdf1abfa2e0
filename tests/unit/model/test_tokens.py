"""Text to tokens and back: what comes from outside never becomes a special token."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sleuth.errors import InputError
from sleuth.model.tokens import BROKEN, Tokens

SPECIAL = ("<|end|>", "<|pad|>")


@pytest.mark.parametrize("text", [*SPECIAL, "a<|end|>b", "<|end|><|pad|> x", " <|end|>", "<|end|>" * 30])
def test_special_tokens_in_outside_text_are_letters(tokens: Tokens, text: str) -> None:
    special = set(tokens.tokenizer.all_special_ids)
    assert len(special) == 2
    ids = tokens.encode(text)
    assert not special & set(ids)
    assert tokens.decode(ids) == text


def test_special_tokens_in_trusted_text_are_meant(tokens: Tokens) -> None:
    ids = tokens.encode_trusted("Who<|end|>Oslo<|pad|>")
    assert [token for token in ids if token in tokens.tokenizer.all_special_ids] == [
        tokens.eos_id,
        tokens.tokenizer.pad_token_id,
    ]
    assert tokens.decode(ids) == "WhoOslo"


def test_one_does_not_change_the_other(tokens: Tokens) -> None:
    trusted = tokens.encode_trusted("<|end|>")
    assert trusted == [tokens.eos_id]
    assert tokens.encode("<|end|>") != trusted
    assert tokens.encode_trusted("<|end|>") == trusted


@pytest.mark.parametrize("text", ["", " ", "Who wrote?\n\n", "東京 🗺 Łódź", "<search> x </search>", "\x00\t\u200b"])
def test_plain_text_comes_back_as_it_was(tokens: Tokens, text: str) -> None:
    assert tokens.decode(tokens.encode(text)) == text


def test_a_lone_surrogate_reads_as_a_question_mark(tokens: Tokens) -> None:
    assert tokens.decode(tokens.encode("a\ud800b")) == "a?b"


def test_long_text_is_neither_cut_nor_padded(tokens: Tokens) -> None:
    backend = Tokenizer.from_str(tokens.tokenizer.backend_tokenizer.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    limited = Tokens(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert limited.encode("Oslo") == tokens.encode("Oslo")
    assert limited.encode(" Ada" * 50) == tokens.encode(" Ada" * 50)
    assert limited.encode_trusted(" Ada" * 50) == tokens.encode_trusted(" Ada" * 50)


def test_what_is_remembered_is_given_anew_each_time(tokens: Tokens) -> None:
    for encode in (tokens.encode, tokens.encode_trusted):
        first = encode("Who wrote <|end|>?")
        expected = list(first)
        first.append(0)
        assert encode("Who wrote <|end|>?") == expected


def test_ids_are_those_of_the_library(tokens: Tokens) -> None:
    text = "Who wrote the book, <search> Ada </search> in Łódź?"
    assert tokens.encode(text) == tokens.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    trusted = text + "<|end|>"
    assert tokens.encode_trusted(trusted) == tokens.tokenizer(trusted, add_special_tokens=False)["input_ids"]


def test_the_text_of_every_id(tokens: Tokens) -> None:
    texts = tokens.texts()
    assert len(texts) == len(tokens.tokenizer)
    assert texts[tokens.encode("</information>")[0]] == "</information>"
    assert texts[tokens.encode("東")[0]] == BROKEN


def test_the_text_of_ids_after_a_gap() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 7}, "a"))
    assert Tokens(PreTrainedTokenizerFast(tokenizer_object=backend)).texts()[7] == "b"


def test_the_end(tokens: Tokens, spelled: Callable[[Sequence[str]], Tokens]) -> None:
    assert tokens.eos_id == tokens.tokenizer.get_vocab()["<|end|>"]
    backend = Tokenizer(models.WordLevel({"a": 0}, "a"))
    assert Tokens(PreTrainedTokenizerFast(tokenizer_object=backend)).eos_id is None


def test_the_begin_token_is_told_where_the_tokenizer_puts_one(tokens: Tokens) -> None:
    assert tokens.prefix_ids == []
    backend = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, "a"))
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    made = Tokens(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>"))
    assert made.prefix_ids == [0]
    assert made.encode("a") == [2]


def test_saved_and_loaded_it_is_the_same(tokens: Tokens, tmp_path: Path) -> None:
    tokens.tokenizer.save_pretrained(tmp_path)
    loaded = Tokens.load(tmp_path)
    text = "Question: Who wrote it?\n<|end|> 東"
    assert loaded.encode(text) == tokens.encode(text)
    assert loaded.eos_id == tokens.eos_id


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"holds no tokenizer; expected tokenizer\.json"):
            Tokens.load(folder)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"model": 3}'])
def test_a_damaged_tokenizer(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(InputError, match="holds no tokenizer that can be read"):
        Tokens.load(tmp_path)


def test_decoders_that_drop_the_first_space() -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "\u2581one": 1, "\u2581two": 2}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokens = Tokens(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert tokens.decode(tokens.encode("one two")) == "one two"
