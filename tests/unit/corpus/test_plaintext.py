"""Plain text: paragraphs, lists, underlined headings, and tables."""

import pytest

from sleuth.corpus.content import Content
from sleuth.corpus.plaintext import delimited_table, plain_text


def test_wrapped_lines_are_joined() -> None:
    source = (
        "The harbour of Oslo was frozen for most of the winter, and the\nFerries stayed where they were, which nobody\n"
        "had expected.\n\n  Second\tparagraph.\n"
    )
    assert plain_text(source).text.splitlines() == [
        "The harbour of Oslo was frozen for most of the winter, and the Ferries stayed where they were, which nobody "
        "had expected.",
        "Second paragraph.",
    ]


def test_items_and_short_lines_stay_apart() -> None:
    source = "Name: Ada\nBorn: 1815\n\nWe need\n- bread\n  and butter\n- wine\n1. first\n(x"
    assert plain_text(source).text.splitlines() == [
        "Name: Ada",
        "Born: 1815",
        "We need",
        "- bread and butter",
        "- wine",
        "1. first",
        "(x",
    ]


def test_underlined_lines_are_headings() -> None:
    source = (
        "======\n Guide\n======\n\nIntro.\n\nInstall\n-------\nLinux\n~~~~~\nRun it.\n\nUse\n---\nNow.\n\n----\nEnd.\n"
    )
    assert plain_text(source) == Content(
        "Guide",
        "Guide\nIntro.\nInstall\nLinux\nRun it.\nUse\nNow.\nEnd.",
        headings={0: 1, 2: 2, 3: 3, 5: 2},
    )


def test_first_line_is_title_and_heading() -> None:
    assert plain_text("Meeting notes 1\n\nAda came.") == Content(
        "Meeting notes 1", "Meeting notes 1\nAda came.", headings={0: 1}
    )
    assert plain_text("") == Content("", "")


def test_delimited_table() -> None:
    source = 'name,note\nAda,"first\nprogram"\n,\nBob,x\n'
    assert delimited_table(source, ",").text == "name: Ada; note: first program\nname: Bob; note: x"
    assert delimited_table("a\tb\n1\t2", "\t").text == "a: 1; b: 2"
    assert delimited_table("", ",").text == ""
    with pytest.raises(ValueError, match="not a readable table"):
        delimited_table('"' + "x" * 2_000_000, ",")
