"""Plain text files: paragraphs of wrapped lines, underlined headings, lists, and delimited tables."""

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from sleuth.corpus.content import UNDERLINE, Content, TextLines, choose_title, title_line

ITEM = re.compile(r"\s*+(?:[-*•+‣·]|\d{1,3}[.)]|[a-zA-Z][.)]|\[[ xX]\])\s")
SHORT_LINE = 40  # characters; shorter lines than this are not wrapped, unless the next begins with a small letter
HEADING_CHARACTERS = 120
LONGEST_CELL = 1 << 20


def plain_text(source: str) -> Content:
    """Return a text with one paragraph per line; the first line is the title if it reads as one."""
    text = TextLines()
    for block in _blocks(source.splitlines(), text):
        text.add(*join_wrapped_lines(block))
    title = title_line(source)
    if title and not text.headings and text.lines[0] == title:
        text.headings[0] = 1
    return text.content(choose_title(text.content(), title))


def _blocks(lines: Sequence[str], text: TextLines) -> Iterator[list[str]]:
    """Yield the paragraphs; headings between them are added to `text`."""
    levels = HeadingLevels()
    block: list[str] = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        before = lines[number - 1] if number else ""
        if not line.strip():
            yield block
            block = []
        elif not block and (level := levels.of(before, line, following)):
            text.add_heading(" ".join(line.split()), level)
        elif not UNDERLINE.fullmatch(line.strip()):
            block.append(line)
    yield block


class HeadingLevels:
    """The levels of underlined headings: each style is one level below the styles seen before it."""

    def __init__(self) -> None:
        self._styles: list[str] = []

    def of(self, before: str, line: str, after: str) -> int:
        """Return the level of a line between two others; 0 if it is not underlined, or overlined, as a heading."""
        words, under = line.strip(), after.rstrip()
        if not words or len(words) > HEADING_CHARACTERS or not UNDERLINE.fullmatch(under) or UNDERLINE.fullmatch(words):
            return 0
        if len(under) < min(len(words) * 0.6, 20):
            return 0
        style = under[0] + ("o" if before.rstrip() == under else "")
        if style not in self._styles:
            self._styles.append(style)
        return self._styles.index(style) + 1


def join_wrapped_lines(lines: Sequence[str]) -> list[str]:
    """Join the lines of a paragraph that a line break wraps; items of lists and short lines stay apart."""
    if not lines:
        return []
    stripped = [" ".join(line.split()) for line in lines]
    width = max(SHORT_LINE, *map(len, stripped))
    joined = [[stripped[0]]]
    for (line, following), source in zip(pairwise(stripped), lines[1:], strict=True):
        fits = len(line) + 1 + len(following.partition(" ")[0]) <= width
        if ITEM.match(source) or (fits and not following[:1].islower()):
            joined.append([following])
        else:
            joined[-1].append(following)
    return [" ".join(words) for words in joined]


def delimited_table(source: str, delimiter: str) -> Content:
    """Return a table of separated values with a row per line; the first row is the header."""
    csv.field_size_limit(LONGEST_CELL)
    try:
        rows = [
            [" ".join(cell.split()) for cell in row]
            for row in csv.reader(source.splitlines(keepends=True), delimiter=delimiter)
        ]
    except csv.Error as error:
        raise ValueError(f"not a readable table ({error})") from error
    filled = [row for row in rows if any(row)]
    text = TextLines()
    if filled:
        text.add_table(filled[0], filled[1:])
    return text.content()
