"""Pages as text, whatever they and their servers say of their encoding."""

import time

import pytest

from sleuth.retrieval.web.fetch import Page
from sleuth.retrieval.web.search import relevant_text

URL = "https://pages.example/"


@pytest.mark.parametrize(
    ("content", "charset", "markup", "text"),
    [
        ("<p>Łódź".encode(), "utf-8", True, "<p>Łódź"),
        ("<p>Łódź".encode("cp1250"), "windows-1250", True, "<p>Łódź"),
        ("<meta charset=windows-1250>Łódź".encode("cp1250"), "", True, "<meta charset=windows-1250>Łódź"),
        ("<meta charset=latin1>Łódź".encode(), "utf-8", True, "<meta charset=latin1>Łódź"),
        ("charset=utf-16".encode("latin-1"), "", False, "charset=utf-16"),
        ("“quoted”".encode("cp1252"), "iso-8859-1", False, "“quoted”"),
        ("東京".encode("shift_jis"), "Shift_JIS", False, "東京"),
        ("東京".encode("euc_jp"), "EUC-JP", False, "東京"),
        ("Łódź".encode("utf-16"), "latin-1", False, "Łódź"),
        ("café".encode("latin-1"), "utf-8", False, "café"),
        (b"plain", "", False, "plain"),
        (b"plain", "no such encoding", False, "plain"),
        (b"plain", "zlib", False, "plain"),
        (b"plain", "rot13", False, "plain"),
        (b"a\0b\r\nc", "ascii", False, "ab\nc"),
    ],
)
def test_a_page_is_read_by_the_encoding_it_has(content: bytes, charset: str, markup: bool, text: str) -> None:
    assert Page(URL, content, markup, charset).text == text


@pytest.mark.parametrize("charset", ["punycode", ""])
def test_encodings_that_take_minutes_are_not_used(charset: str) -> None:
    page = Page(URL, b"<meta charset=punycode>a-" + b"b9" * 500_000, True, charset)
    started = time.process_time()
    relevant_text(page, "what is not there", "query")
    assert time.process_time() - started < 5


def test_the_snippet_of_a_page_of_plain_text_is_found_in_it() -> None:
    page = Page(URL, b"First paragraph.\nOslo is the capital of Norway and more.\nLast one.", markup=False)
    assert relevant_text(page, "Oslo is the capital", "query") == page.content.decode()
