"""Markdown as plain text: the words of links, headings, lists and tables without their syntax; code as it stands."""

import re
from collections.abc import Iterator
from html import unescape

FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?=[\w-]+:)(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
FRONT_TITLE = re.compile(r"^title:(.++)$", re.MULTILINE)
COMMENT = re.compile(r"<!--(?:(?!-->|<!--).)*+-->", re.DOTALL)
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*)")
HEADING_END = re.compile(r"[ \t]#+$")
UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
REFERENCE = re.compile(r" {0,3}\[[^\]\n]+\]:[ \t]+\S+")
TABLE_RULE = re.compile(r"[ \t]*+(?:\|[ \t]*+)?:?-++:?[ \t]*+(?:\|[ \t]*+:?-++:?[ \t]*+)++\|?[ \t]*+$")
QUOTE = re.compile(r"(?:[ \t]*+>)++[ \t]?")
BULLET = re.compile(r"(?:[ \t]*[-*+][ \t]+)+(?:\[[ xX]\][ \t]+)?")
NUMBER = re.compile(r"[ \t]*\d{1,9}[.)][ \t]")

LINK = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\n]*(?:\([^()\n]*\)[^()\n]*)?\)")  # [words](address), ![words](address)
# In this order; a link may stand around an image.
INLINE = (
    (LINK, r"\1"),
    (LINK, r"\1"),
    (re.compile(r"!?\[([^\[\]\n]+)\]\[[^\[\]\n]*\]"), r"\1"),  # [words][reference]
    (re.compile(r"<((?:https?|mailto):[^<>\s]+)>"), r"\1"),
    (re.compile(r"</?[A-Za-z][^<>\n]*>"), ""),
    (re.compile(r"(?<![\w*\\])(\*{1,3})(?=[^\s*])([^*\n]+?)(?<=[^\s*])\1(?!\w)"), r"\2"),
    (re.compile(r"(?<![\w_\\])(_{1,3})(?=[^\s_])([^_\n]+?)(?<=[^\s_])\1(?!\w)"), r"\2"),
    (re.compile(r"~~(?=\S)([^~\n]+)~~"), r"\1"),
    (re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~-])"), r"\1"),
)
TICKS = re.compile(r"`++")


def plain_markdown(text: str) -> tuple[str, str, frozenset[int]]:
    """The title (of the front matter, else the first heading, else ""), the text, a paragraph a line, and the numbers
    of the lines that are headings."""
    front = FRONT_MATTER.match(text)
    named = FRONT_TITLE.search(front[1]) if front else None
    body = COMMENT.sub("", text[front.end() :] if front else text)
    reader = _Reader()
    for line in body.splitlines():
        reader.read(line)
    title = _unquoted(named[1].strip()).strip() if named else ""
    title = title or reader.heading
    return title, "\n".join(reader.paragraphs()), frozenset(reader.headings)


class _Reader:
    """Where a pass over the lines stands: the paragraph being put together, or a block of code."""

    def __init__(self) -> None:
        self.heading = ""
        self.headings: list[int] = []
        self._fence = ""
        self._done: list[str] = []
        self._open: list[str] = []

    def paragraphs(self) -> list[str]:
        self._close()
        return self._done

    def read(self, line: str) -> None:
        fence = FENCE.match(line)
        if self._fence:
            self._code(line, fence)
        elif fence:
            self._close()
            self._fence = fence[1]
        else:
            quote = QUOTE.match(line)
            self._prose(line[quote.end() :] if quote else line)

    def _code(self, line: str, fence: re.Match[str] | None) -> None:
        if fence and fence[1].startswith(self._fence) and not line.strip().strip(self._fence[0]):
            self._fence = ""
        elif line.strip():
            self._done.append(line.rstrip())

    def _prose(self, line: str) -> None:
        if self._open and UNDERLINE.match(line):
            self._head(" ".join(self._open))
            self._open = []
        elif not line.strip() or RULE.match(line) or REFERENCE.match(line) or TABLE_RULE.match(line):
            self._close()
        elif heading := HEADING.match(line):
            self._close()
            self._head(HEADING_END.sub("", heading[1].rstrip()))
        else:
            self._words(line)

    def _words(self, line: str) -> None:
        """A line of prose goes on with its paragraph; an item of a list and a row of a table stand alone."""
        bullet, row = BULLET.match(line), line.strip().startswith("|")
        if bullet or row or NUMBER.match(line):
            self._close()
        line = line[bullet.end() :] if bullet else line
        self._open.append(" ".join(line.strip().strip("|").split("|")) if row else line)

    def _head(self, words: str) -> None:
        words = " ".join(_inline(words).split())
        self.heading = self.heading or words
        self.headings += [len(self._done)] if words else []
        self._done += [words] if words else []

    def _close(self) -> None:
        words = " ".join(_inline(" ".join(self._open)).split())
        self._done += [words] if words else []
        self._open = []


def _unquoted(title: str) -> str:
    """A title of the front matter without the quotes around it."""
    return title[1:-1] if len(title) > 2 and title[0] == title[-1] and title[0] in "\"'" else title


def _inline(text: str) -> str:
    """A line without the syntax inside it; code keeps every character."""
    return "".join(_spans(text))


def _spans(text: str) -> Iterator[str]:
    """Words, and what stands between two equally long runs of backticks."""
    runs = [run.span() for run in TICKS.finditer(text)]
    closing: dict[int, list[int]] = {}  # by length, the runs still to come, the next one last: each is taken once
    for number in reversed(range(len(runs))):
        closing.setdefault(runs[number][1] - runs[number][0], []).append(number)
    end = number = 0
    while number < len(runs):
        start, code = runs[number]
        alike = closing[code - start]
        while alike and alike[-1] <= number:
            alike.pop()
        if alike:
            number = alike[-1]
            yield _words(text[end:start])
            yield text[code : runs[number][0]].strip()
            end = runs[number][1]
        number += 1
    yield _words(text[end:])


def _words(text: str) -> str:
    for pattern, kept in INLINE:
        text = pattern.sub(kept, text)
    return unescape(text)
