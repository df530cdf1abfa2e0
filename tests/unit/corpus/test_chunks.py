"""Splitting text into sentences, chunks and passages."""

import pytest

from sleuth.corpus.chunks import chunks, passages, sentences
from sleuth.corpus.documents import Document
from sleuth.corpus.markdown import plain_markdown
from sleuth.records import Passage

WHOLE = [
    "Dr. Ada and Mrs. Lovelace met J. R. R. Tolkien.",
    "It costs 3.14 dollars, e.g. on Monday.",
    "The U.S. Senate sat in Washington, D.C. Tuesday.",
    "See Fig. 3 and No. 5 on pp. 7-9.",
    "It was born ca. 1900 at approx. 5 a.m. in Oslo.",
    "He went to St. Olav with Smith et al. Later.",
    "Wait ... for it, as v. 2.0.1 did.",
]
CUT = {
    "He said no. Then he left.": ["He said no. ", "Then he left."],
    'She cried "Stop!" He did. (Yes.) So it is.': ['She cried "Stop!" ', "He did. ", "(Yes.) ", "So it is."],
    "Is it? Yes! 42 is right. 1999 was not.": ["Is it? ", "Yes! ", "42 is right. ", "1999 was not."],
    "今天天气很好。我们去公园！「好的。」他说。": ["今天天气很好。", "我们去公园！", "「好的。」", "他说。"],
    "यह एक वाक्य है। यह दूसरा है।": ["यह एक वाक्य है। ", "यह दूसरा है।"],
    "Done... Now the next.": ["Done... ", "Now the next."],
    "": [],
}


@pytest.mark.parametrize("text", WHOLE)
def test_abbreviations_do_not_end_sentences(text: str) -> None:
    assert sentences(text) == [text]


@pytest.mark.parametrize(("text", "pieces"), CUT.items())
def test_sentences_are_split(text: str, pieces: list[str]) -> None:
    assert sentences(text) == pieces


def test_chunks_end_at_sentences() -> None:
    text = "One two three. Four five six seven. Eight nine. Ten."
    assert list(chunks(text, 8)) == ["One two three. Four five six seven.", "Eight nine. Ten."]


def test_long_sentence_is_cut_between_words() -> None:
    text = "a b c d e f g. H i."
    assert list(chunks(text, 3)) == ["a b c", "d e f", "g. H i."]


def test_characters_of_unspaced_scripts_count_as_words() -> None:
    assert list(chunks("今天天气很好。我们去公园！他说好。", 6)) == ["今天天气很好。", "我们去公园！", "他说好。"]
    assert list(chunks("春眠不覚暁、処処聞啼鳥", 4)) == ["春眠不覚", "暁、処処聞", "啼鳥"]


def test_text_without_spaces_is_bounded() -> None:
    assert [len(piece) for piece in chunks("x" * 12_345, 100)] == [5000, 5000, 2345]


def test_paragraph_starts_a_chunk_if_the_last_is_half_full() -> None:
    filled = list(chunks("Here are five words now.\nThen come three. And three more.", 8))
    assert filled == ["Here are five words now.", "Then come three. And three more."]
    assert list(chunks("Only two.\nThen come three. And four more words.", 8)) == [
        "Only two.\nThen come three.",
        "And four more words.",
    ]
    assert list(chunks("Only two.\n\nThen come three.", 8)) == ["Only two.\nThen come three."]


def test_heading_stays_with_the_text_below() -> None:
    text = "Here are three.\nHead\nThen come four words. And the rest."
    assert list(chunks(text, 7, {1: 1})) == ["Here are three.", "Head\nThen come four words.", "And the rest."]
    assert list(chunks("One two three.\nPart\nSection\nFour.", 8, {1: 1, 2: 1})) == [
        "One two three.\nPart\nSection\nFour."
    ]
    assert list(chunks("One two.\nPart\nSection\nFour.", 4, {1: 1, 2: 1})) == ["One two.", "Part\nSection\nFour."]


def test_section_starts_a_chunk_if_the_last_is_half_full() -> None:
    assert list(chunks("One two three.\nHead\nFour.", 6, {1: 1})) == ["One two three.", "Head\nFour."]
    assert list(chunks("One two.\nHead\nFour.", 6, {1: 1})) == ["One two.\nHead\nFour."]


def test_heading_with_a_long_sentence_shares_the_first_chunk() -> None:
    assert list(chunks("Head\na b c d e.", 4, {0: 1})) == ["Head\na b c", "d e."]
    assert list(chunks("Head\na b c d.", 4, {0: 1})) == ["Head\na b c", "d."]


def test_heading_without_text_is_kept() -> None:
    assert list(chunks("One two.\nHead", 6, {1: 1})) == ["One two.\nHead"]
    assert list(chunks("A heading that is too long\n \nOne.", 4, {0: 1})) == ["A heading that is", "too long\nOne."]


def titles(text: str, words: int, headings: dict[int, int]) -> list[str]:
    return [passage.title for passage in passages(Document("a.md", "Doc", "a.md", text, headings), words)]


def test_passage_in_one_section_has_its_heading_in_the_title() -> None:
    text = "Doc\nOne two three.\nFirst\nFour five. Six seven.\nSecond\nEight nine.\nThird\nTen."
    levels = {0: 1, 2: 2, 4: 2, 6: 2}
    below = ["Doc > First", "Doc > First", "Doc > Second", "Doc > Third"]
    assert titles(text, 3, levels) == ["Doc", "Doc", *below]
    assert titles("First\nOne.\nSecond\nTwo.", 9, {0: 1, 2: 1}) == ["Doc"]
    assert titles("One.\nFirst\nTwo.", 9, {1: 1}) == ["Doc"]


def test_headings_above_a_passage_are_a_path() -> None:
    text = "Doc\nInstall\nLinux\nOne two three.\nMac\nFour five six.\nUse\nSeven eight nine."
    levels = {0: 1, 1: 2, 2: 3, 4: 3, 6: 2}
    assert titles(text, 3, levels) == ["Doc > Install > Linux"] * 2 + ["Doc > Install > Mac"] * 2 + ["Doc > Use"] * 2
    # A passage that spans sections has the headings that they share.
    assert titles(text, 14, levels) == ["Doc > Install", "Doc > Use"]
    assert titles("Deep\nOne.\nOuter\nTwo.", 3, {0: 3, 2: 1}) == ["Doc > Deep", "Doc > Outer"]


def test_long_heading_is_not_used_in_the_title() -> None:
    assert titles(f"{'word ' * 21}\nOne.", 99, {0: 1}) == ["Doc"]
    assert titles(f"{'word ' * 20}\nOne.", 99, {0: 1}) == [f"Doc > {'word ' * 20}".strip()]


def test_sections_become_titled_passages_in_order() -> None:
    sections = "".join(f"## Sec {number}\n\n{f'Words of {number} here. ' * 15}\n\n" for number in range(20))
    guide = plain_markdown(f"# Guide\n\n{sections}")
    found = list(passages(Document("a.md", guide.title, "https://x.org", guide.text, guide.headings)))
    assert [passage.title for passage in found] == [f"Guide > Sec {number}" for number in range(20)]
    assert [passage.extra["section"] for passage in found] == [f"Sec {number}" for number in range(20)]
    assert "\n".join(passage.text for passage in found) == guide.text
    assert [passage.id for passage in found] == [f"a.md#{position}" for position in range(20)]


def test_blank_text_has_no_chunks() -> None:
    assert list(chunks(" \n\n \t\n")) == []


def test_passage_records_its_source() -> None:
    document = Document("notes/a.txt", "A title", "https://x.org/a", "One two. Three four.")
    rest = {"title": "A title", "url": "https://x.org/a", "source": "notes/a.txt"}
    assert list(passages(document, 2)) == [
        Passage("notes/a.txt#0", '"A title"\nOne two.', {**rest, "position": 0}),
        Passage("notes/a.txt#1", '"A title"\nThree four.', {**rest, "position": 1}),
    ]


def test_chunks_have_about_a_hundred_words() -> None:
    text = " ".join(f"This is sentence number {number} of a long text." for number in range(1000))
    sizes = [len(piece.split()) for piece in chunks(text)]
    assert sum(sizes) == len(text.split())
    assert {90 <= size <= 100 for size in sizes[:-1]} == {True}
