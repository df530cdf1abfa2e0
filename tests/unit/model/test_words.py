"""Text by its words: the ids of the whole text, for tokenizers that cut it at words, and for no others."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from sleuth.model.words import PATTERNS, Words, cuts_at_words

TEXT = """Ada Lovelace (born 1815) didn't write "The Engine's Notes", a well-known work; she translated it.
Doc 2(Title: Oslo) Oslo -- 1,213,903 people, 5.5% more; it's Norway's capital.\n\n<think> Łódź, São Paulo: 東京 </think>
"""
LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
BARE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# Letters, digits, signs and spaces of every kind that a pattern may tell from others, the special names among them.
SIGNS = st.sampled_from([*"aZé東1²७.,;:!?()\"'-_</>\n\t\r \u00a0\u2003\u0301\u1e9b\u180e\U0001f5fa", "'s", "'LL", "  "])
NAMES = st.sampled_from(["<tool>", "<|end|>", "Ada", "Engine's", "\n\n", " -- ", "e\u0301"])
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
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=150)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_words_make_the_ids_of_the_whole(form: str, texts: list[str]) -> None:
    """Of texts one after another too, whose words are known by then, and of them as one text."""
    tokenizer = FORMS[form]
    assert cuts_at_words(tokenizer)
    ours = Words(tokenizer)
    for text in [*texts, " ".join(texts), *texts, " ".join((TEXT, *texts, TEXT))]:
        assert ours.encode(text) == whole(tokenizer, text)


@pytest.mark.parametrize("form", FORMS)
def test_words_known_elsewhere_are_not_taken_where_space_is_wide(form: str) -> None:
    ours = Words(FORMS[form])
    for text in ("a b c d", "a  b c d", "a b\n c d", "a \nb c d", " a b c d ", "b", "", " ", "a b", "  a b c"):
        assert ours.encode(text) == whole(FORMS[form], text)


def test_too_many_words_are_forgotten() -> None:
    tokenizer = FORMS["gpt2"]
    ours = Words(tokenizer, remembered=100)
    texts = [" ".join(f"w{number}x" for number in range(start, start + 40)) for start in range(0, 400, 10)]
    assert [ours.encode(text) for text in texts] == [whole(tokenizer, text) for text in texts]
    assert len(ours._known) < 140


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
    assert not cuts_at_words(other())


def test_chance_in_merging_is_told() -> None:
    tokenizer = Tokenizer(models.BPE(dropout=0.1))
    tokenizer.pre_tokenizer = LEVEL
    assert not cuts_at_words(tokenizer)
