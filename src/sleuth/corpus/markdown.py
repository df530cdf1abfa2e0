"""Conversion of Markdown to plain text with markdown-it: CommonMark, tables, strikethrough and task lists."""

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from sleuth.corpus.content import Content, TextLines, choose_title, title_line
from sleuth.corpus.html_document import html_lines

FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?=[\w-]+:)(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
FRONT_TITLE = re.compile(r"^title:(.++)$", re.MULTILINE)
TASK = re.compile(r"\[[ xX]\] ")
# Blocks nested deeper are dropped; the time for hostile input is proportional to this limit.
PARSER = MarkdownIt("commonmark", {"maxNesting": 50}).enable(["table", "strikethrough"])


def plain_markdown(text: str) -> Content:
    """Return the text by paragraphs; the title comes from front matter, a heading or the first line, else is empty."""
    front = FRONT_MATTER.match(text)
    match = FRONT_TITLE.search(front[1]) if front else None
    title = match[1].strip() if match else ""
    if len(title) > 2 and title[0] == title[-1] and title[0] in "\"'":
        title = title[1:-1].strip()
    tokens = PARSER.parse(text[front.end() :] if front else text)
    content = _lines(tokens).content(title)
    return Content(choose_title(content, _first_line(tokens)), content.text, headings=content.headings)


def _first_line(tokens: Sequence[Token]) -> str:
    """Return the first line of a text that begins with a paragraph, if it reads as a title."""
    if len(tokens) < 2 or tokens[0].type != "paragraph_open":
        return ""
    return title_line(_text(tokens[1].children or (), line_break="\n"))


class _MarkdownReader:
    """Conversion state: the current list item and table."""

    def __init__(self) -> None:
        self.text = TextLines()
        self._item: Token | None = None  # the list item whose first paragraph comes next
        self._header: list[str] = []
        self._rows: list[list[str]] = []
        self._cells: list[str] = []

    def read(self, token: Token, previous: Token | None) -> None:
        match token.type:
            case "list_item_open":
                self._item = token
            case "inline" if previous is not None:
                self._read_inline(" ".join(_text(token.children or ()).split()), previous)
            case "tr_close":
                self._rows.append(self._cells)
                self._cells = []
            case "thead_close":
                self._header, self._rows = self._rows[-1] if self._rows else [], []
            case "table_close":
                self.text.add_table(self._header, self._rows)
                self._header, self._rows = [], []
            case "fence" | "code_block":
                self.text.add(*(line.rstrip() for line in token.content.splitlines()))
            case "html_block":
                self.text.extend(html_lines(token.content))

    def _read_inline(self, words: str, previous: Token) -> None:
        if previous.type in ("th_open", "td_open"):
            self._cells.append(words)
        elif previous.type == "heading_open":
            self.text.add_heading(words, int(previous.tag[1:]))
            self._item = None
        else:
            if self._item is not None:
                number = f"{self._item.info}{self._item.markup} " if self._item.info else ""
                words = number + TASK.sub("", words, count=1) if TASK.match(words) else number + words
            self.text.add(words)
            self._item = None


def _lines(tokens: Sequence[Token]) -> TextLines:
    reader = _MarkdownReader()
    for token, previous in zip(tokens, (None, *tokens), strict=False):
        reader.read(token, previous)
    return reader.text


def _text(tokens: Sequence[Token], line_break: str = " ") -> str:
    """Return the text of inline tokens, including the alt texts of images but no tags or addresses."""
    parts = []
    for token in tokens:
        if token.type in ("text", "code_inline"):
            parts.append(token.content)
        elif token.type in ("softbreak", "hardbreak"):
            parts.append(line_break)
        elif token.type == "image":
            parts.append(_text(token.children or ()))
    return "".join(parts)
