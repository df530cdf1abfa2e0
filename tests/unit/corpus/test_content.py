"""Titles and table rows."""

import pytest

from sleuth.corpus.content import Content, TextLines, choose_title, table_lines, title_line


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("Meeting notes 1\n\nAda came.", "Meeting notes 1"),
        ("\n\n  Meeting   notes 1  \nAttendees: Ada", "Meeting notes 1"),
        ("Title\n=====\ntext", "Title"),
        ("A title of a text that is long, although an underline follows\n======\ntext", "TITLE"),
        ("会議メモ\n\n本文", "会議メモ"),
        ("Ends with dots ...\n\ntext", "Ends with dots ..."),
        ("A sentence.\n\ntext", ""),
        ("Dear Ada,\n\ntext", ""),
        ("wrapped text that\ngoes on", ""),
        ("Text that is wrapped at sixty characters, as many files have it\nGoes on", ""),
        ("word " * 15, ""),
        ("x" * 101, ""),
        ("- item", ""),
        ("=====\ntext", ""),
        ("", ""),
    ],
)
def test_first_line_as_a_title(source: str, title: str) -> None:
    assert title_line(source) == (title if title != "TITLE" else source.partition("\n")[0])


def test_choice_of_the_title() -> None:
    headings = Content("", "intro\nPart\nDetail", headings={1: 1, 2: 2})
    assert choose_title(headings, "intro") == "Part"
    assert choose_title(Content("", "intro\nDetail", headings={1: 2}), "intro") == "intro"
    assert choose_title(Content("", "intro.\nDetail", headings={1: 2}), "") == "Detail"
    assert choose_title(Content("", "Detail\nmore", headings={0: 3}), "Detail") == "Detail"
    assert choose_title(Content("Named", "Part", headings={0: 1}), "x") == "Named"
    assert choose_title(Content("", "text"), "") == ""


def test_rows_of_a_table_name_their_columns() -> None:
    assert table_lines(["name", "size"], [["a", "1"], ["b", ""], ["", "3"], ["c", "4", "more"]]) == [
        "name: a; size: 1",
        "name: b",
        "size: 3",
        "name: c; size: 4; more",
    ]
    assert table_lines(["", "size"], [["a", "1"]]) == ["a; size: 1"]
    assert table_lines([], [["a", "1"], ["", "2"]]) == ["a | 1", "2"]
    assert table_lines(["name", "size"], []) == ["name | size"]


def test_lines_keep_their_headings() -> None:
    first, second = TextLines(), TextLines()
    first.add("one", " ", "two")
    second.add_heading(" Head ", 2)
    second.add_heading(" ", 1)
    second.add("three")
    first.extend(second)
    first.extend(second.content())
    assert first.content("t") == Content("t", "one\ntwo\nHead\nthree\nHead\nthree", headings={2: 2, 4: 2})
