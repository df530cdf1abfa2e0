"""The tokenizer: untrusted text never becomes a special token; word cache; stop strings."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from sleuth.errors import InputError
from sleuth.model.tokens import BROKEN, PATTERNS, StopStrings, Tokens, WordEncoder, common_prefix, splits_at_words
from sleuth.sft.dialects import DIALECTS
from sleuth.sft.quickstart_policy import build_tokenizer

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
        with pytest.raises(InputError, match=r"tokenizer\.json"):
            Tokens.load(folder)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"model": 3}'])
def test_a_damaged_tokenizer(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        Tokens.load(tmp_path)


def test_decoders_that_drop_the_first_space() -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "\u2581one": 1, "\u2581two": 2}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokens = Tokens(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert tokens.decode(tokens.encode("one two")) == "one two"


TEXT = """Ada Lovelace (born 1815) didn't write "The Engine's Notes", a well-known work; she translated it.
Doc 2(Title: Oslo) Oslo -- 1,213,903 people, 5.5% more; it's Norway's capital.\n\n<think> Łódź, São Paulo: 東京 </think>
"""
LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
BARE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# Letters, digits, signs and spaces of every kind that a pattern may tell from others, the special names among them.
SIGNS = st.sampled_from([*"aZé東1²७.,;:!?()\"'-_</>\n\t\r \u00a0\u2003\u0301\u1e9b\u180e\U0001f5fa", "'s", "'LL", "  "])
NAMES = st.sampled_from(["<tool>", "<|end|>", "Ada", "Engine's", "\n\n", " -- ", "e\u0301", "</answer>", '{"a'])
TEXTS = st.lists(SIGNS | NAMES | st.just(" ") | st.characters(exclude_categories=["Cs"]), max_size=24).map("".join)


def made(
    *steps: pre_tokenizers.PreTokenizer,
    names: Sequence[AddedToken] = (),
    normalizer: normalizers.Normalizer | None = None,
) -> Tokenizer:
    """A small byte-level BPE that cuts text by these steps."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(list(names))
    tokenizer.encode_special_tokens = True
    return tokenizer


def by_pattern(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def quickstart(dialect: str) -> Tokenizer:
    """A tokenizer of the quickstart's models, whose words are few."""
    built: Tokenizer = build_tokenizer([TEXT], DIALECTS[dialect]).backend_tokenizer
    built.encode_special_tokens = True
    return built


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


FORMS = {
    "gpt2": made(LEVEL),
    "smollm": made(pre_tokenizers.Digits(individual_digits=True), LEVEL),
    "qwen": made(
        by_pattern(PATTERNS[0]), BARE, names=[AddedToken("<tool>", normalized=False)], normalizer=normalizers.NFC()
    ),
    "llama": made(by_pattern(PATTERNS[1]), BARE),
    "quickstart": quickstart("tags"),
    "quickstart with tools": quickstart("tools"),
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=150)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_words_make_the_ids_of_the_whole(form: str, texts: list[str]) -> None:
    """Of texts one after another too, whose words are known by then, and of them as one text."""
    tokenizer = FORMS[form]
    assert splits_at_words(tokenizer)
    ours = WordEncoder(tokenizer)
    for text in [*texts, " ".join(texts), *texts, " ".join((TEXT, *texts, TEXT))]:
        assert ours.encode(text) == whole(tokenizer, text)


@pytest.mark.parametrize("form", FORMS)
def test_words_known_elsewhere_are_not_taken_where_space_is_wide(form: str) -> None:
    ours = WordEncoder(FORMS[form])
    for text in ("a b c d", "a  b c d", "a b\n c d", "a \nb c d", " a b c d ", "b", "", " ", "a b", "  a b c"):
        assert ours.encode(text) == whole(FORMS[form], text)


def test_too_many_words_are_forgotten() -> None:
    tokenizer = FORMS["gpt2"]
    ours = WordEncoder(tokenizer, capacity=100)
    texts = [" ".join(f"w{number}x" for number in range(start, start + 40)) for start in range(0, 400, 10)]
    assert [ours.encode(text) for text in texts] == [whole(tokenizer, text) for text in texts]
    assert len(ours._words) < 140


@pytest.mark.parametrize(
    "other",
    [
        lambda: made(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda: made(by_pattern(r"\s+|\S+"), BARE),
        lambda: made(pre_tokenizers.Split(Regex(PATTERNS[0]), behavior="merged_with_next"), BARE),
        lambda: made(pre_tokenizers.Metaspace()),
        lambda: made(LEVEL, names=[AddedToken("Ada Lovelace")]),
        lambda: made(LEVEL, names=[AddedToken("Ada.")]),
        lambda: made(LEVEL, names=[AddedToken("Ada", lstrip=True)]),
        lambda: made(LEVEL, normalizer=normalizers.NFKC()),
        lambda: Tokenizer(models.BPE()),
        lambda: Tokenizer(models.WordPiece(vocab={"a": 0}, unk_token="a")),
    ],
)
def test_tokenizers_that_may_cut_elsewhere_are_told(other: Callable[[], Tokenizer]) -> None:
    assert not splits_at_words(other())


def test_chance_in_merging_is_told() -> None:
    tokenizer = Tokenizer(models.BPE(dropout=0.1))
    tokenizer.pre_tokenizer = LEVEL
    assert not splits_at_words(tokenizer)


TAGS = ("</search>", "</answer>")


def ended(tokens: Tokens, ids: Sequence[int], stops: tuple[str, ...], given: int = 0) -> tuple[int, str] | None:
    """After how many tokens a stop is matched, and which; as an engine asks, token by token."""
    finder = StopStrings(tokens)
    for count in range(given + 1, len(ids) + 1):
        if (stop := finder.match(ids[:count], given, stops)) is not None:
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


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [((), (1,), 0), ((1, 2), (1, 2, 3), 2), ((1, 2, 3), (1, 2), 2), ((1, 2, 3), (1, 4, 3), 1), ((2,), (1,), 0)],
)
def test_common_prefix(first: tuple[int, ...], second: tuple[int, ...], length: int) -> None:
    assert common_prefix(first, second) == common_prefix(list(first), list(second)) == length
