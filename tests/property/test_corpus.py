"""Properties of any corpus: the store equals the stream, ids are ordered, and chunking loses no word."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.corpus.chunks import WORD, chunks, sentences
from sleuth.corpus.decoding import decode, decode_html
from sleuth.corpus.html import page_text, read_markup
from sleuth.corpus.html_document import read_html
from sleuth.corpus.markdown import plain_markdown
from sleuth.corpus.passages import Ids, PassageStore, RepeatedId, stream, survey
from sleuth.corpus.plaintext import plain_text
from sleuth.corpus.rst import restructured_text
from sleuth.corpus.source_code import read_code

LINES = [
    *("# a", "b", "---", "===", "", "```", "> ## &#10;c", "- d", "| e |", "=== ===", "+--+", "| f", ".. g::", "  h::"),
    *("<h1>i", "<table><tr><td>j", "</table>", "def k", "<main>", "</main>", "\x0c", "\u2028l"),
]
QUICK = settings(max_examples=60, deadline=None)

text = st.text(st.characters(codec="utf-8"))
# Few letters, NULs among them, so that ids share beginnings across the borders of eight bytes.
names = st.one_of(st.text("a\0é\U0001f600", min_size=1, max_size=30), text.filter(bool))
prose = st.lists(
    st.sampled_from(["Dr.", "word", "Word.", "今天。", "気", "e.g.", "!", " ", "\n", "\n\n", "x" * 60, "…"])
)
markup = st.lists(
    st.sampled_from(["<p>", "</p>", "<!--", "-->", "<b", ">", "<script>", "</script>", "a", "&amp;", '"'])
)


@settings(max_examples=25, deadline=None)
@given(rows=st.dictionaries(names, text, min_size=1, max_size=8), blanks=st.integers(1, 3), wide=st.booleans())
def test_store_equals_stream(rows: dict[str, str], blanks: int, wide: bool) -> None:
    with TemporaryDirectory() as name:
        corpus = Path(name, "corpus.jsonl")
        lines = (json.dumps({"id": key, "contents": value}, ensure_ascii=wide) for key, value in rows.items())
        corpus.write_text(("\n" * blanks).join(lines), encoding="utf-8", newline="")
        assert survey(corpus, Path(name)).passages == len(rows)
        store = PassageStore(corpus, Path(name))
        passages = list(stream(corpus))
        assert [store[row] for row in range(len(store))] == passages
        assert {passage.id: passage.contents for passage in passages} == rows
        assert [store.row_of(passage.id) for passage in passages] == list(range(len(rows)))
        ordered = sorted(rows)
        assert [ordered[rank] for rank in store.ranks] == list(rows)
        assert all(store.find(key + "\0") is None for key in rows if key + "\0" not in rows)


@QUICK
@given(ids=st.lists(names, max_size=30))
def test_ids_are_ordered_as_strings_and_repeats_are_found(ids: list[str]) -> None:
    with TemporaryDirectory() as name, Ids(Path(name)) as gathered:
        for start in range(0, len(ids), 7):
            gathered.extend(ids[start : start + 7])
        if len(set(ids)) == len(ids):
            assert gathered.order().tolist() == sorted(range(len(ids)), key=ids.__getitem__)
            return
        with pytest.raises(RepeatedId) as found:
            gathered.order()
        assert ids[found.value.first] == ids[found.value.second] == found.value.name
        assert found.value.first < found.value.second


@QUICK
@given(pieces=st.one_of(prose.map("".join), prose.map(" ".join), text), words=st.integers(1, 12))
def test_chunking_loses_nothing_and_keeps_the_order(pieces: str, words: int) -> None:
    found = list(chunks(pieces, words))
    assert "".join("".join(found).split()) == "".join(pieces.split())
    assert all(0 < len(WORD.findall(chunk)) <= words for chunk in found)


@QUICK
@given(
    lines=st.lists(st.sampled_from(["Heading", "", "Short one.", "Two here. And four more words.", "no stop " * 9])),
    words=st.integers(2, 30),
)
def test_no_chunk_ends_with_the_heading_of_the_next(lines: list[str], words: int) -> None:
    headings = {number: 1 for number, line in enumerate(lines) if line == "Heading"}
    found = list(chunks("\n".join(lines), words, headings))
    assert " ".join(found).split() == " ".join(lines).split()
    assert all(0 < len(WORD.findall(chunk)) <= words for chunk in found)
    # Only headings that fill a passage, and those with nothing below them, can be the last of one.
    run = max(
        len(each) for each in "".join("h" if line == "Heading" else " " * bool(line) for line in lines).split(" ")
    )
    if run < words:
        assert not any(chunk.endswith("Heading") for chunk in found[:-1])


@QUICK
@given(source=st.lists(st.sampled_from(LINES)))
def test_headings_are_lines_of_the_text(source: list[str]) -> None:
    for read in (plain_markdown, plain_text, restructured_text, read_html, read_code):
        found = read("\n".join(source))
        lines = found.text.split("\n") if found.text else []
        assert found.headings.keys() <= set(range(len(lines)))
        assert all(line.strip() for line in lines)


@QUICK
@given(pieces=st.one_of(prose.map(" ".join), text))
def test_joined_sentences_are_the_text(pieces: str) -> None:
    assert "".join(sentences(pieces)) == pieces
    assert all(sentences(pieces))


@QUICK
@given(source=st.one_of(text, markup.map("".join)))
def test_any_text_is_valid_html_and_markdown(source: str) -> None:
    readers = (plain_markdown, plain_text, restructured_text, read_html, read_code)
    for found in (read_markup(source).text, page_text(source)[1], *(read(source).text for read in readers)):
        assert found.encode().decode() == found


@QUICK
@given(content=st.binary())
def test_any_bytes_can_be_decoded(content: bytes) -> None:
    for found in (decode(content), decode_html(b"<meta charset=utf-16>" + content)):
        assert found.encode().decode() == found


@QUICK
@given(words=text)
def test_utf8_is_unchanged(words: str) -> None:
    kept = words.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").removeprefix("\ufeff")
    assert decode(words.encode()) == kept
