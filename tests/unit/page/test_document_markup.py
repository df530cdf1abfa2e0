"""HTML building: everything but Html is escaped."""

import pytest

from sleuth.page.document import Html, element, escaped, joined, visible

HOSTILE = "<script>alert('x')</script> & \"quoted\""
ESCAPED = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quoted&quot;"


def test_plain_text_is_escaped() -> None:
    assert escaped(HOSTILE) == ESCAPED
    assert element("p", HOSTILE) == f"<p>{ESCAPED}</p>"
    assert joined([HOSTILE, Html("<br>")], "<") == f"{ESCAPED}&lt;<br>"


def test_html_is_not_escaped_again() -> None:
    assert element("p", element("b", 3 < 4)) == "<p><b>True</b></p>"


@pytest.mark.parametrize("mixed", [Html("<b>") + HOSTILE, f"{Html('<b>')}{HOSTILE}", Html("<b>{}").format(HOSTILE)])
def test_formatted_strings_are_escaped_again(mixed: str) -> None:
    assert "<" not in escaped(mixed)


def test_attributes() -> None:
    assert element("div", class_="a b", stroke_width=2, id=None) == '<div class="a b" stroke-width="2"></div>'
    assert element("p", title=Html('"><script>')) == '<p title="&quot;&gt;&lt;script&gt;"></p>'


def test_void_elements() -> None:
    assert element("br") == "<br>"


@pytest.mark.parametrize("name", ["onclick", "onload_", "ONERROR", "a b"])
def test_event_handlers_and_invalid_attributes_raise(name: str) -> None:
    with pytest.raises(ValueError, match="not allowed"):
        element("p", **{name: "x"})


def test_element_names_are_checked() -> None:
    with pytest.raises(ValueError, match="element name"):
        element("p><script")


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", " javascript:alert(1)", "https://a.example", "//a.example", "data:x"]
)
def test_external_addresses_raise(address: str) -> None:
    with pytest.raises(ValueError, match="local address"):
        element("a", href=address)


@pytest.mark.parametrize("address", ["#step-3", "/runs/a", "report.html", "runs/a/page?x=1#y"])
def test_local_addresses(address: str) -> None:
    assert element("a", href=address) == f'<a href="{address}"></a>'


def test_unencodable_characters_are_replaced() -> None:
    assert escaped("a\x00b\ud800c\x1bd\te\n") == "a\ufffdb\ufffdc\ufffdd\te\n"
    escaped("\udfff\x7f").encode()


@pytest.mark.parametrize(
    "hidden", ["\x1b[2J", "\x07", "\x08", "\x9b31m", "\u202eevil", "\u2066x", "\rover", "\x7f", "\ud800"]
)
def test_hidden_characters_are_replaced_one_for_one(hidden: str) -> None:
    assert visible(f"a{hidden}b") == f"a\ufffd{hidden[1:]}b"
    assert hidden[0] not in escaped(hidden)


def test_line_breaks_tabs_and_letters_are_kept() -> None:
    text = "a\tb\r\nc\n\u05e9\u05dc\u05d5\u05dd \u200f\u4e2d\U0001f469\u200d\U0001f52c"
    assert visible(text) == text
