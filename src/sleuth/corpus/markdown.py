"""Conversion of Markdown to plain text with markdown-it: CommonMark, tables, strikethrough and task lists."""

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from sleuth.corpus.html import read_markup

FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?=[\w-]+:)(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
FRONT_TITLE = re.compile(r"^title:(.++)$", re.MULTILINE)
TASK = re.compile(r"\[[ xX]\] ")
# Blocks nested deeper are dropped; the time for hostile input is proportional to this limit.
PARSER = MarkdownIt("commonmark", {"maxNesting": 50}).enable(["table", "strikethrough"])


def plain_markdown(text: str) -> tuple[str, str, frozenset[int]]:
    """Return title (front matter, else first heading, else ""), text by paragraphs, and line numbers of headings."""
    front = FRONT_MATTER.match(text)
    match = FRONT_TITLE.search(front[1]) if front else None
    title = match[1].strip() if match else ""
    if len(title) > 2 and title[0] == title[-1] and title[0] in "\"'":
        title = title[1:-1].strip()
    lines, headings = _lines(PARSER.parse(text[front.end() :] if front else text))
    return title or (lines[headings[0]] if headings else ""), "\n".join(lines), frozenset(headings)


def _lines(tokens: Sequence[Token]) -> tuple[list[str], list[int]]:
    """Return the lines of text in a token stream and the numbers of those that are headings."""
    lines: list[str] = []
    headings: list[int] = []
    cells: list[str] = []  # cells of the current table row
    item: Token | None = None  # the list item whose first paragraph comes next
    for token, previous in zip(tokens, (None, *tokens), strict=False):
        match token.type:
            case "list_item_open":
                item = token
            case "inline" if previous is not None:
                words = " ".join(_text(token.children or ()).split())
                if previous.type == "heading_open":
                    headings += [len(lines)] if words else []
                elif previous.type in ("th_open", "td_open"):
                    cells.append(words)
                    continue
                elif item is not None:
                    number = f"{item.info}{item.markup} " if item.info else ""
                    words = number + TASK.sub("", words, count=1) if TASK.match(words) else number + words
                lines += [words] if words else []
                item = None
            case "tr_close":
                lines += [" ".join(filter(None, cells))] if any(cells) else []
                cells = []
            case "fence" | "code_block":
                lines += [line.rstrip() for line in token.content.splitlines() if line.strip()]
            case "html_block":
                lines += read_markup(token.content).text.splitlines()
    return lines, headings


def _text(tokens: Sequence[Token]) -> str:
    """Return the text of inline tokens, including the alt texts of images but no tags or addresses."""
    parts = []
    for token in tokens:
        if token.type in ("text", "code_inline"):
            parts.append(token.content)
        elif token.type in ("softbreak", "hardbreak"):
            parts.append(" ")
        elif token.type == "image":
            parts.append(_text(token.children or ()))
    return "".join(parts)
