"""HTML files: main text, headings, tables, and hostile pages."""

from time import process_time

import pytest

from sleuth.corpus.content import Content
from sleuth.corpus.html_document import html_lines, read_html

PAGE = """<!doctype html><html><head><title>Install — Project 1.2</title><style>p { color: red }</style>
<link rel="canonical" href="https://x.org/install"></head><body class="wy-nav">
<nav><ul><li><a href="/">Home</a></li></ul></nav><div class="sphinxsidebar"><div>Menu</div>More</div>
<div role="navigation">Path</div><div id="content"><h1>Install<a class="headerlink" href="#i">¶</a></h1>
<p>Some <b>bo</b>ld
words &amp; more.<br>Next line.</p><!-- <p>hidden</p> --><script>if (1 < 2) { "<p>no</p>" }</script>
<h2>Linux</h2><ul><li>One</li><li>Two <p>paragraphs</p></li></ul><pre>a = 1
  b = 2</pre><table><tr><th>Flag</th><th>Meaning</th></tr><tr><td>-v</td><td><p>be</p><p>loud</p></td></tr></table>
<h2>Mac</h2><p>The end.</p></div><footer>Imprint</footer></body></html>"""


def test_page_is_read_with_headings_and_tables() -> None:
    lines = [
        "Install",
        "Some bold words & more.",
        "Next line.",
        "Linux",
        "One",
        "Two",
        "paragraphs",
        "a = 1",
        "  b = 2",
        "Flag: -v; Meaning: be loud",
        "Mac",
        "The end.",
    ]
    assert read_html(PAGE) == Content("Install", "\n".join(lines), "https://x.org/install", {0: 1, 3: 2, 10: 2})


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title>A page</title><p>x", "A page"),
        ("<title>A page</title><h1>Other</h1>x", "A page"),
        ("<title>Site: Other</title><h3>Small</h3><h2>Other</h2>x", "Other"),
        ("<h2>Only</h2>x", "Only"),
        ("<svg><title>icon</title></svg>x", ""),
    ],
)
def test_title(html: str, title: str) -> None:
    assert read_html(html).title == title


def test_main_element_is_the_text_if_it_holds_enough_of_it() -> None:
    menu = "<div>Menu of the site</div>"
    assert read_html(f"{menu}<main><h1>T</h1><p>Words of it.</p></main>{menu}").text == "T\nWords of it."
    assert read_html(f"{menu}<article>One.</article><article>Two.</article>").text == "One.\nTwo."
    assert read_html(f"{menu * 10}<main>x</main>").text == "\n".join(["Menu of the site"] * 10 + ["x"])
    assert read_html("<main>").text == ""


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        ("<tr><th>Name<td>Ada<tr><th>Born<td>1815", ["Name: Ada", "Born: 1815"]),
        ("<tr><td>a<td>b<tr><td><tr><td>c<td>d", ["a | b", "c | d"]),
        ("<thead><tr><th>a<th>b</thead>", ["a | b"]),
        ("<tr><td><h2>Layout</h2>text<td>side", ["Layout", "text", "side"]),
        ("<tr><td>outer<table><tr><th>a<th>b<tr><td>1<td>2</table><td>more", ["outer", "a: 1; b: 2", "more"]),
        ("<tr><td>", []),
    ],
)
def test_tables(table: str, lines: list[str]) -> None:
    assert html_lines(f"<table>{table}</table>").lines == lines


@pytest.mark.parametrize(
    "piece",
    ["<", "<a", "</", "<!--", '<a b="', "<h1>", "<title>", "<table>", "<td>x", "<div class=nav>", "<main>", "<p>"],
)
def test_hostile_page_takes_linear_time(piece: str) -> None:
    start = process_time()
    read_html(piece * (400_000 // len(piece)))
    assert process_time() - start < 4


def test_table_around_the_main_element() -> None:
    assert read_html("<table><tr><th>a<td>b<main>" + "<p>words" * 9 + "</main></table>").text
