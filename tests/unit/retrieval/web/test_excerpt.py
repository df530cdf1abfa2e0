"""Excerpts of pages around a snippet."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.retrieval.web.excerpt import WORD, excerpt, plain

FILLER = [f"Paragraph {number} speaks of weather number {number}, of rain and of wind." for number in range(60)]
FJORD = "The Sognefjord is the largest fjord in Norway. It stretches 205 kilometres inland from the ocean."
PAGE = "\n".join([*FILLER[:30], FJORD, *FILLER[30:]])


def words(text: str) -> int:
    return len(WORD.findall(text))


@pytest.mark.parametrize(
    "snippet",
    [
        "The Sognefjord is the largest fjord in Norway.",
        "Jan 5, 2020 — The Sognefjord is the largest fjord in Norway. It stretches 205 ...",
        "... largest <b>fjord</b> in <strong>Norway</strong>. It stretches 205 kilometres inland&nbsp;from&#32;the sea",
        "SOGNEFJORD … largest fjord … 205 kilometres",
        "weather of the Sognefjord, the largest fjord in Norway",
    ],
)
def test_origin_of_the_snippet_is_found(snippet: str) -> None:
    found = excerpt(PAGE, snippet, words=60)
    assert FJORD in found
    assert words(found) <= 60


def test_excerpt_is_centred_and_has_whole_paragraphs() -> None:
    found = excerpt(PAGE, "The Sognefjord is the largest fjord in Norway.", words=75)
    assert found.split("\n") == [*FILLER[28:30], FJORD, *FILLER[30:32]]


def test_word_order_distinguishes_candidates() -> None:
    shuffled = "Norway has a fjord; the largest fish in it is a cod. " * 3
    page = "\n".join([shuffled, *FILLER, FJORD, *FILLER, shuffled])
    assert FJORD in excerpt(page, "the largest fjord in Norway", words=40)


@pytest.mark.parametrize(
    "snippet", ["An aardvark eats termites at night.", "", "...", "Sognefjord unrelated words only"]
)
def test_snippet_is_returned_if_not_on_the_page(snippet: str) -> None:
    assert excerpt(PAGE, snippet) == snippet


def test_rare_words_weigh_more() -> None:
    common = [f"Line {number} is of the town near the river." for number in range(30)]
    page = "\n".join([*common, *FILLER, "The Sognefjord has a glacier near it.", *FILLER, *common])
    assert "Sognefjord has a glacier" in excerpt(
        page, "Sognefjord ... glacier ... of the town near the river", words=20
    )


def test_scattered_words_are_not_an_origin() -> None:
    snippet = "alpha beta gamma delta epsilon zeta eta theta"
    page = " ".join(f"{word} {' '.join(FILLER)}" for word in snippet.split())
    assert excerpt(page, snippet) == snippet


def test_empty_page_gives_the_snippet() -> None:
    assert excerpt("", "The largest fjord") == "The largest fjord"


def test_short_page_is_whole() -> None:
    assert excerpt(f"\n{FJORD}\n\n", "largest fjord in Norway") == FJORD


def test_one_long_paragraph_is_cut_at_sentences() -> None:
    page = " ".join([*FILLER[:30], FJORD, *FILLER[30:]])
    found = excerpt(page, "the largest fjord in Norway", words=80)
    assert found.startswith("Paragraph ")
    assert found.endswith("wind.")
    assert FJORD in found


def test_text_without_sentences_is_cut_between_words() -> None:
    page = " ".join(f"({number})" for number in range(1000))
    assert excerpt(page, "500 501 502", words=5) == "(499) (500) (501) (502) (503)"


def test_scripts_without_spaces_are_compared_by_character() -> None:
    page = (
        "大阪は日本の都市である。\n" * 20
        + "東京は日本の首都であり、世界最大の都市の一つである。\n"
        + "京都は古い都である。\n" * 20
    )
    assert "東京は日本の首都" in excerpt(page, "東京は日本の首都であり", words=60)


def test_highlighting_is_removed_from_snippets() -> None:
    assert plain("<b>Oslo</b> is<br/> a &lt; b &amp; c <i >x</i> <strong>y") == "Oslo is a < b & c x y"


def test_page_of_two_megabytes_takes_no_longer_than_reading_it() -> None:
    page = "word fjord " * 180_000
    started = time.process_time()
    excerpt(page, "the largest fjord in Norway word")
    assert time.process_time() - started < 5


TEXTS = st.text(st.sampled_from("ab .\n,!“東"), max_size=120)


@settings(max_examples=60, deadline=None)
@given(page=TEXTS, snippet=TEXTS, limit=st.integers(1, 12))
def test_excerpt_is_one_piece_of_the_page_and_no_longer_than_allowed(page: str, snippet: str, limit: int) -> None:
    found = excerpt(page, snippet, limit)
    if found != snippet:
        assert found in page
        assert words(found) <= limit


@settings(max_examples=40, deadline=None)
@given(before=TEXTS, after=TEXTS, quoted=st.text(st.sampled_from("cdefg "), min_size=8, max_size=40))
def test_unique_text_is_found(before: str, after: str, quoted: str) -> None:
    quote = " ".join(quoted.split())
    if quote:
        assert quote in excerpt(f"{before}\n{quote}\n{after}", quote, words=100)
