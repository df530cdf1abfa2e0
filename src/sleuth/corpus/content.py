"""The text of a document as lines: paragraphs, headings with their levels, and table rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TITLE_WORDS, TITLE_CHARACTERS = 14, 100
WRAPPED = 60  # characters; a longer line that text follows directly is the first line of a wrapped paragraph
TITLE = re.compile(r"(?=[^\W_])|(?=[\"'“«¿¡(\[])")
SENTENCE_END = re.compile(r"""(?<!\.)[.;,:。、，；][)"'”’»]?$""")
UNDERLINE = re.compile(r"([=\-~^\"'*+#`:._])\1{2,}$")


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file; `text` has one paragraph per line, `headings` maps line numbers to levels from 1.

    `title` and `url` are empty if the file declares none.
    """

    title: str
    text: str
    url: str = ""
    headings: Mapping[int, int] = field(default_factory=dict)


class TextLines:
    """Collects the lines of a document in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.headings: dict[int, int] = {}

    def add(self, *lines: str) -> None:
        """Append paragraphs; blank ones are dropped."""
        self.lines += [line for line in lines if line.strip()]

    def add_heading(self, text: str, level: int) -> None:
        if text.strip():
            self.headings[len(self.lines)] = level
            self.lines.append(text.strip())

    def add_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.add(*table_lines(header, rows))

    def extend(self, content: "TextLines | Content") -> None:
        """Append the lines of another text with their headings."""
        lines = content.lines if isinstance(content, TextLines) else content.text.split("\n")
        self.headings |= {number + len(self.lines): level for number, level in content.headings.items()}
        self.lines += lines

    def content(self, title: str = "", url: str = "") -> Content:
        return Content(title, "\n".join(self.lines), url, self.headings)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, `header: value; header: value`, which is readable on its own in any passage."""
    if not rows:
        return [" | ".join(filter(None, header))]
    lines = []
    for row in rows:
        names = (*header, *[""] * (len(row) - len(header)))
        named = [(name, cell) for name, cell in zip(names, row, strict=False) if cell]
        cells = (f"{name}: {cell}" if name not in ("", cell) else cell for name, cell in named)
        lines.append(("; " if any(header) else " | ").join(cells))
    return lines


def choose_title(content: Content, first_line: str = "") -> str:
    """Return the declared title, else an outer heading, the first line if it reads as a title, or any first heading."""
    if content.title:
        return content.title
    number, level = min(content.headings.items(), default=(0, 0))
    heading = content.text.split("\n", number + 1)[number] if level else ""
    return heading if level == 1 or (heading and number == 0) else first_line or heading


def title_line(source: str) -> str:
    """Return the first line of a text if it reads as a title, else "": short, no sentence, no part of a paragraph."""
    before, _, rest = source.lstrip().partition("\n")
    line, following = " ".join(before.split()), rest.partition("\n")[0].strip()
    short = len(line) <= TITLE_CHARACTERS and 0 < len(line.split()) <= TITLE_WORDS
    if not short or not TITLE.match(line) or SENTENCE_END.search(line):
        return ""
    wrapped = following[:1].islower() or len(line) >= WRAPPED
    return "" if following and wrapped and not UNDERLINE.fullmatch(following) else line
