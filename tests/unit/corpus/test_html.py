"""Web pages: main text, title, canonical address, encodings, and hostile input."""

import subprocess
import sys
from time import process_time

import pytest

from sleuth.corpus.decoding import decode, decode_html
from sleuth.corpus.html import page_text, read_markup

PROSE = "The harbour of Oslo was frozen for most of the winter, and the ferries stayed where they were."
ARTICLE = f"""<!doctype html><html><head><title>Oslo &amp; its\n harbour</title>
<link rel="shortcut icon" href="/i.png"><link href='https://x.org/oslo?a=1&amp;b=2' rel="canonical">
<style>p {{ color: red }}</style></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/all">All pages</a></li></ul></nav>
<article><h1>Oslo</h1><p>{PROSE}</p><p>{PROSE} Twice.</p><script>if (1 < 2) {{ document.write("<p>no</p>") }}</script>
</article><footer>Imprint and privacy</footer></body></html>"""


def test_title_and_main_text() -> None:
    title, text = page_text(ARTICLE, "https://x.org/oslo")
    assert title == "Oslo & its harbour"
    assert text.splitlines() == ["Oslo", PROSE, f"{PROSE} Twice."]


def test_wrapped_paragraph_becomes_one_line() -> None:
    wrapped = ARTICLE.replace(" was frozen", "\n   was frozen").replace("<p>The", "<pre>a = 1\nb = 2</pre><p>The", 1)
    assert page_text(wrapped)[1].splitlines() == ["Oslo", "a = 1", "b = 2", PROSE, f"{PROSE} Twice."]


def test_bytes_are_decoded() -> None:
    assert page_text(ARTICLE.encode("utf-16")) == page_text(ARTICLE.encode()) == page_text(ARTICLE)


def test_page_without_main_text_returns_visible_text() -> None:
    assert page_text("<title>Empty</title>Hello <b>wor</b>ld") == ("Empty", "Hello world")
    assert page_text("just words") == ("", "just words")
    assert page_text("") == ("", "")


def test_heading_replaces_a_missing_title() -> None:
    assert page_text(f"<html><body><h1> </h1><h1>Real <i>one</i></h1><p>{PROSE}</p></body></html>")[0] == "Real one"


def test_invisible_elements_are_skipped() -> None:
    html = (
        "a<br>b <!-- <p>hidden</p> --><i>c</i><script>x<p>y</script>d<svg><title>no</title></svg>e<svg/>f 1 < 2 &lt;3"
    )
    assert read_markup(html).text == "a\nb c\nd\ne\nf 1 < 2 <3"
    assert read_markup(html).title == ""


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("<link rel=canonical href=https://x.org/a>", "https://x.org/a"),
        ('<LINK HREF="https://x.org/?a&amp;b" REL="Canonical">', "https://x.org/?a&b"),
        ('<link rel="canonical" href="/relative">', ""),
        ('<link rel="alternate" href="https://x.org/a">', ""),
        ('<!-- <link rel="canonical" href="https://x.org/a"> -->', ""),
    ],
)
def test_canonical_address(link: str, address: str) -> None:
    assert read_markup(link).canonical == address


@pytest.mark.parametrize(
    "piece", ["<", "<a", "</", "<!--", "<![", "&", '<a b="', "<a b='", "<h1>", "<title>", "<link rel=", "<svg>", "-->"]
)
def test_hostile_page_takes_linear_time(piece: str) -> None:
    start = process_time()
    read_markup(piece * (200_000 // len(piece)))
    assert process_time() - start < 2


def test_page_with_too_many_tags_skips_the_extractor() -> None:
    start = process_time()
    assert page_text(f"<title>Many</title><nav>Menu</nav>{'<p>a' * 400_000}") == (
        "Many",
        "\n".join(["Menu", *"a" * 400_000]),
    )
    assert process_time() - start < 4


def test_odd_characters_are_accepted() -> None:
    odd = "<p>a\0b \ud800 &#0; &#xD800; &#" + "9" * 5000 + "; c"
    title, text = page_text(odd)
    assert title == ""
    assert text.encode().startswith(b"ab ?")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("é".encode("utf-8-sig"), "é"),
        ("é".encode("utf-16"), "é"),
        ("é".encode("utf-32"), "é"),
        ("é\r\nö\rü".encode(), "é\nö\nü"),
        ("é".encode("latin-1"), "é"),
        (b"\xff\xfe\x00", "\N{REPLACEMENT CHARACTER}"),
        (b"a\0b", "ab"),
    ],
)
def test_text_is_decoded(content: bytes, text: str) -> None:
    assert decode(content) == text


@pytest.mark.parametrize(
    ("declared", "encoding", "letter"),
    [
        ("windows-1251", "cp1251", "Ж"),
        ("Shift_JIS", "shift_jis", "日"),
        ("iso-8859-1", "cp1252", "€"),
        ("no-such-thing", "utf-8", "Ж"),
        ("ascii", "utf-16", "Ж"),
        ("cp850", "cp850", "é"),
        ("utf-16", "utf-8", "Ж"),
        ("UTF-16LE", "utf-8", "Ж"),
        ("rot13", "utf-8", "Ж"),
        ("unicode_escape", "utf-8", "\\x41"),
    ],
)
def test_declared_encoding_is_used(declared: str, encoding: str, letter: str) -> None:
    page = f'<meta charset="{declared}"><p>{letter}</p>'
    assert decode_html(page.encode(encoding)) == page


@pytest.mark.parametrize("declared", ["punycode", "idna", "utf-7", "bz2"])
def test_slow_codecs_are_ignored(declared: str) -> None:
    page = f"<meta charset={declared}>a-" + "b9" * 500_000
    start = process_time()
    assert decode_html(page.encode()) == page
    assert process_time() - start < 2


def test_missing_extractor_is_reported() -> None:
    script = (
        "import sys; sys.modules['trafilatura'] = None\n"
        "from sleuth.corpus.html import page_text\n"
        "from sleuth.errors import MissingExtra\n"
        "try:\n    page_text('<p>x')\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "trafilatura is not installed; install it with: pip install 'sleuth[documents]'\n"
