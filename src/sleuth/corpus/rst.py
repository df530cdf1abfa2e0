"""reStructuredText files: sections, directives, literal blocks, roles, and grid and simple tables as plain text."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from sleuth.corpus.content import UNDERLINE, Content, TextLines, choose_title, title_line
from sleuth.corpus.plaintext import HeadingLevels, join_wrapped_lines

DIRECTIVE = re.compile(r"\.\. (?P<name>[\w:+.-]{1,60})::(?P<rest>.*)")
EXPLICIT = re.compile(r"\.\.(?:\s|$)")  # comments, targets, footnotes
FOOTNOTE = re.compile(r"\.\. \[[^\]\s]{1,60}\] ")
OPTION = re.compile(r"\s+:[\w-]{1,40}:")
ROLE = re.compile(r":[\w:+.-]{1,40}:(?=`)")
TARGET = re.compile(r"`([^`<\n]{1,300}+)<[^`>\n]{1,300}+>`_{0,2}")
MARKUP = re.compile(r"``([^`\n]{1,300}+)``|`([^`\n]{1,300}+)`_{0,2}|\*\*([^*\n]{1,300}+)\*\*|\*([^*\n]{1,300}+)\*")
Mode = Literal["prose", "literal", "dropped"]
# How the blocks of directives are read that are not prose.
BLOCKS: dict[str, Mode] = {
    **dict.fromkeys(("code-block", "code", "sourcecode", "parsed-literal", "doctest", "testcode"), "literal"),
    **dict.fromkeys(("contents", "index", "image", "include", "toctree", "raw", "module", "currentmodule"), "dropped"),
    **dict.fromkeys(("highlight", "sectionauthor", "moduleauthor", "literalinclude"), "dropped"),
}
GRID = re.compile(r"\+[-=+]{3,}\+")
SIMPLE = re.compile(r"=++(?: ++=++)++")


def restructured_text(source: str) -> Content:
    """Return the text of a file with one paragraph per line; unknown directives and roles keep their text."""
    reader = _Reader(source.expandtabs(4).splitlines())
    while reader.number < len(reader.lines):
        reader.read_block()
    text = reader.text
    return text.content(choose_title(text.content(), title_line(inline_text(text.lines[0])) if text.lines else ""))


class _Reader:
    """Conversion state: the next line, and how blocks indented more than `_indent` are read."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.number = 0
        self.text = TextLines()
        self._levels = HeadingLevels()
        self._mode: Mode = "prose"
        self._indent = 0

    def read_block(self) -> None:
        """Read a heading, a table or a paragraph."""
        line = self.lines[self.number]
        words = line.strip()
        before, after = (self.lines[place] if 0 <= place < len(self.lines) else "" for place in self._neighbours())
        if not words:
            self.number += 1
        elif GRID.fullmatch(words):
            self.text.add_table(*_grid_table(self._take(lambda row: row.strip().startswith(("+", "|")))))
        elif SIMPLE.fullmatch(words):
            self.text.add_table(*_simple_table(self._take_simple_table()))
        elif (before[:3] == after[:3] or not line.startswith(" ")) and (level := self._levels.of(before, line, after)):
            self.text.add_heading(inline_text(words), level)
            self.number += 2
        elif UNDERLINE.fullmatch(words) and not words.startswith(("..", "::")):
            self.number += 1
        else:
            self._add(self._take(lambda row: bool(row.strip())))

    def _neighbours(self) -> tuple[int, int]:
        return self.number - 1, self.number + 1

    def _take(self, belongs: Callable[[str], bool]) -> list[str]:
        begin = self.number
        while self.number < len(self.lines) and belongs(self.lines[self.number]):
            self.number += 1
        return list(self.lines[begin : self.number])

    def _take_simple_table(self) -> list[str]:
        """Take the lines up to the third border, or the second if a blank line follows it."""
        borders, begin = 0, self.number
        while self.number < len(self.lines) and borders < 3:
            blank = not self.lines[self.number].strip()
            if blank and borders == 2 and SIMPLE.fullmatch(self.lines[self.number - 1].strip()):
                break
            borders += bool(SIMPLE.fullmatch(self.lines[self.number].strip()))
            self.number += 1
        return [line for line in self.lines[begin : self.number] if line.strip()]

    def _add(self, block: list[str]) -> None:
        indent = len(block[0]) - len(block[0].lstrip())
        if indent <= self._indent:
            self._mode = "prose"
        if self._mode != "prose":
            self.text.add(*(line.rstrip() for line in block if self._mode == "literal"))
            return
        self._indent = indent
        first = block[0].strip()
        if found := DIRECTIVE.match(first):
            self._mode = BLOCKS.get(found["name"], "prose")
            options = [line for line in block[1:] if not OPTION.match(line)]
            block = [] if found["name"] in BLOCKS else [found["rest"]]
            if self._mode == "literal":
                self.text.add(*(line.rstrip() for line in options))
            block += options if self._mode == "prose" else []
        elif EXPLICIT.match(first) and not FOOTNOTE.match(first):
            self._mode, block = "dropped", []
        elif block[-1].rstrip().endswith("::"):
            self._mode = "literal"
        elif OPTION.match(block[0]):
            block = []
        self.text.add(*(inline_text(line) for line in join_wrapped_lines([line for line in block if line.strip()])))


def inline_text(line: str) -> str:
    """Return a text without inline markup."""
    line = MARKUP.sub(lambda found: next(filter(None, found.groups())), TARGET.sub(r"`\1`", ROLE.sub("", line)))
    line = " ".join(line.split())
    return line.removesuffix(":") if line.endswith("::") else line


def _grid_table(block: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    header: list[str] = []
    rows: list[list[str]] = []
    cells: list[list[str]] = []
    for line in block:
        if line.strip().startswith("+"):
            if cells:
                rows.append([inline_text(" ".join(parts).strip()) for parts in cells])
            if "=" in line and rows:
                header, rows = rows[-1], []
            cells = []
        else:
            parts = line.strip().strip("|").split("|")
            cells = cells or [[] for _ in parts]
            for cell, part in zip(cells, parts, strict=False):
                cell.append(part.strip())
    return header, rows


def _simple_table(block: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    starts = [found.start() for found in re.finditer("=+", block[0])]
    spans = list(pairwise((*starts, None)))
    groups: list[list[list[str]]] = [[]]
    for line in block[1:]:
        cells = [line[start:end].strip() for start, end in spans]
        if SIMPLE.fullmatch(line.strip()):
            groups.append([])
        elif set(line.strip()) <= set("- ="):
            continue
        elif not cells[0] and groups[-1]:  # a row that goes on
            groups[-1][-1] = [f"{above} {cell}".strip() for above, cell in zip(groups[-1][-1], cells, strict=True)]
        else:
            groups[-1].append(cells)
    filled = [[[inline_text(cell) for cell in row] for row in group] for group in groups if group]
    if len(filled) < 2:
        return [], filled[0] if filled else []
    return [" ".join(cells).strip() for cells in zip(*filled[0], strict=True)], filled[1]
