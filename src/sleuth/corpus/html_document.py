"""HTML files as documents: title, main text, headings, lists, preformatted blocks and tables; needs no library."""

import re

from sleuth.corpus.content import Content, TextLines
from sleuth.corpus.html import ATTRIBUTE, INLINE, LONGEST_LINK, SKIPPED, TAG, canonical_address, tag_name, unescape_text

# Elements around the text of a page. The names of classes and ids are those of common site generators.
PAGE_PARTS = frozenset({"nav", "footer", "aside", "form", "select", "button"})
PART_NAMES = re.compile(
    r"(?:^|[\s_-])(?:nav|navbar|navigation|navheader|navfooter|sidebar|sphinxsidebar|breadcrumbs?|related|toc|toctree|"
    r"toctree-wrapper|table-of-contents|footer|footerlinks|headerlink|cookie|menu|skip-?link|prev-next|md-source-file)"
    r"(?:$|[\s_-])|^navigation$|^contentinfo$"
)
WHOLE_PAGE = frozenset({"html", "body", "main", "article"})
HEADINGS = {f"h{level}": level for level in range(1, 7)}
CELLS = frozenset({"th", "td"})
VOID = frozenset({"br", "hr", "img", "input", "link", "meta", "source", "wbr", "col", "area", "base", "embed", "track"})
BLANKS = re.compile(r"[ \t\r\f\v\xa0]+")
MAIN_SHARE = 0.2  # of the text of a page; a smaller main element is not the text


def read_html(source: str) -> Content:
    """Read any text as an HTML page; its title is the first heading, or a title element that does not contain it."""
    reader = _PageReader()
    _feed(reader, source)
    title = " ".join("".join(reader.title).split())
    first = min(reader.text.headings.items(), key=lambda item: (item[1], item[0]), default=(-1, 0))[0]
    heading = reader.text.lines[first] if first >= 0 else ""
    chosen = heading if heading and (not title or heading.casefold() in title.casefold()) else title
    return reader.selected().content(chosen, reader.canonical)


def html_lines(source: str) -> TextLines:
    """Read a fragment of HTML, such as a block in a Markdown file."""
    reader = _PageReader()
    _feed(reader, source)
    return reader.text


def _feed(reader: "_PageReader", source: str) -> None:
    for place, piece in enumerate(TAG.split(source)):
        if place % 2:
            reader.read_tag(piece)
        elif piece:
            reader.read_text(unescape_text(piece))
    reader.end_block()


class _Cell:
    """A cell of a table; `header` cells name a column or a row."""

    def __init__(self, header: bool) -> None:
        self.header = header
        self.parts: list[str] = []

    @property
    def text(self) -> str:
        return " ".join(filter(None, self.parts))


class _Table:
    """The cells of a table while it is read, and the line at which it began."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.rows: list[list[_Cell]] = []
        self.plain = True  # no headings and no tables inside

    def add_cell(self, header: bool) -> None:
        if not self.rows:
            self.rows.append([])
        self.rows[-1].append(_Cell(header))

    def add_text(self, text: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1].parts.append(text)

    def split(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the other rows; the first row is the header if all of its cells are header cells."""
        rows = [row for row in self.rows if any(cell.parts for cell in row)]
        header = [cell.text for cell in rows.pop(0)] if rows and all(cell.header for cell in rows[0]) else []
        if header or not all(row[0].header for row in rows):
            return header, [[cell.text for cell in row] for row in rows]
        return [], [[f"{row[0].text}: {' | '.join(cell.text for cell in row[1:])}"] for row in rows]


class _PageReader:
    """Parser state while reading a page; the time is linear in its size."""

    def __init__(self) -> None:
        self.text = TextLines()
        self.title: list[str] = []
        self.canonical = ""
        self.main: list[tuple[int, int]] = []  # ranges of lines inside of main and article elements
        self._block: list[str] = []  # text of the current block
        self._heading = 0  # level of the heading being read
        self._hidden = ""  # element or comment whose text is dropped
        self._depth = 0  # open elements of that name inside of it
        self._main_depth = 0
        self._main_start = 0
        self._in_title = False
        self._preformatted = False
        self._table: _Table | None = None

    def read_text(self, piece: str) -> None:
        if self._hidden:
            return
        if self._in_title:
            self.title.append(piece)
        else:
            self._block.append(piece if self._preformatted else BLANKS.sub(" ", piece.replace("\n", " ")))

    def read_tag(self, tag: str) -> None:
        name = tag_name(tag)
        closing = tag.startswith(("</", "-->"))
        if self._hidden:
            self._read_hidden(name, tag, closing)
        elif not closing and self._is_hidden(name, tag):
            if not tag.endswith("/>") and name not in VOID:
                self._hidden, self._depth = name, 1
        elif name == "title":
            self._in_title = not closing and not self.title
        elif name == "link":
            self.canonical = self.canonical or canonical_address(tag)
        elif name == "br":
            self._block.append("\n")
        elif not INLINE.fullmatch(name):
            self._read_block(name, closing)

    def _read_hidden(self, name: str, tag: str, closing: bool) -> None:
        if self._hidden in SKIPPED:  # its content is not markup
            if closing and name == SKIPPED[self._hidden]:
                self._hidden = ""
        elif name == self._hidden and not tag.endswith("/>"):
            self._depth += -1 if closing else 1
            self._hidden = self._hidden if self._depth else ""

    def _is_hidden(self, name: str, tag: str) -> bool:
        if name in SKIPPED or name in PAGE_PARTS:
            return True
        if name in WHOLE_PAGE or len(tag) < 12 or not any(key in tag for key in ("class", "id", "role")):
            return False
        values = {key.lower(): value.strip("\"'").lower() for key, value in ATTRIBUTE.findall(tag[:LONGEST_LINK])}
        return any(PART_NAMES.search(values.get(key, "")) for key in ("class", "id", "role"))

    def _read_block(self, name: str, closing: bool) -> None:
        self.end_block()
        if name in ("main", "article"):
            self._read_main(closing)
        elif name in HEADINGS:
            self._heading = 0 if closing else HEADINGS[name]
            if self._table is not None and not closing:
                self._table.plain = False
        elif name == "pre":
            self._preformatted = not closing
        elif name == "table":
            self._end_table() if closing else self._begin_table()
        elif self._table is not None and not closing:
            if name == "tr":
                self._table.rows.append([])
            elif name in CELLS:
                self._table.add_cell(name == "th")

    def end_block(self) -> None:
        """Add the text of the current block as a line; a preformatted block as several."""
        text, self._block = "".join(self._block), []
        for line in text.splitlines():
            words = line.rstrip() if self._preformatted else " ".join(line.split())
            if self._heading:
                self.text.add_heading(words, self._heading)
            else:
                self.text.add(words)
            if self._table is not None:
                self._table.add_text(words)

    def _read_main(self, closing: bool) -> None:
        self._main_depth = max(0, self._main_depth + (-1 if closing else 1))
        if not closing and self._main_depth == 1:
            self._main_start = len(self.text.lines)
        elif closing and self._main_depth == 0:
            self.main.append((self._main_start, len(self.text.lines)))

    def _begin_table(self) -> None:
        # The outer of two tables is there for the layout: its cells stay lines.
        self._table = _Table(len(self.text.lines))

    def _end_table(self) -> None:
        if self._table is None or not self._table.plain:
            self._table = None
            return
        header, rows = self._table.split()
        if header or rows:
            del self.text.lines[self._table.line :]
            self.text.add_table(header, rows)
        self._table = None

    def selected(self) -> TextLines:
        """Return the lines of the main elements if they hold enough of the text, else all lines."""
        # A table that is closed after the main element in it may have replaced lines.
        inside = [number for start, end in self.main for number in range(start, min(end, len(self.text.lines)))]
        size = sum(len(self.text.lines[number]) for number in inside)
        if size < MAIN_SHARE * sum(map(len, self.text.lines)) or not size:
            return self.text
        chosen = TextLines()
        for number in inside:
            if number in self.text.headings:
                chosen.add_heading(self.text.lines[number], self.text.headings[number])
            else:
                chosen.add(self.text.lines[number])
        return chosen
