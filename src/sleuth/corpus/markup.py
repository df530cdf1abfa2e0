"""What can be read from HTML tag by tag: its title, its own address, and every visible word."""

import re
from dataclasses import dataclass
from html import unescape

# One pass over disjoint pieces, so that a hostile page costs no more than its length; the standard library's parser
# is quadratic on unclosed tags, and refuses some.
TAG = re.compile(r"""(<!--|-->|<[A-Za-z/!?](?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+>|<[A-Za-z/!?][^<>]*+>)""")
NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)")
ATTRIBUTE = re.compile(r"""([A-Za-z-]{1,20})\s?=\s?("[^"]*"|'[^']*'|[^\s"'>]+)""")
SPACE = re.compile(r"\s+")
LONGEST_LINK = 4096

SKIPPED = {"<!--": "-->", **{name: name for name in ("script", "style", "template", "svg", "noscript")}}
INLINE = re.compile(
    r"a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|label|mark|q|s|samp|small|span|strike|strong|sub|"
    r"sup|time|tt|u|var|wbr|<!--|-->"
)


@dataclass(frozen=True, slots=True)
class Markup:
    """What a page says of itself, and its visible text, a block a line; what it does not say is empty."""

    title: str
    heading: str
    canonical: str
    text: str


def read_markup(html: str) -> Markup:
    """Reads any text as HTML; never fails."""
    reader = _Reader()
    for place, piece in enumerate(TAG.split(html)):
        if place % 2:
            reader.tag(piece)
        else:
            reader.text(_unescaped(piece))
    return reader.markup()


def unwrapped(html: str) -> str:
    """The page with the line breaks gone that mean nothing: all in its text but those of preformatted blocks."""
    pieces = TAG.split(html)
    preformatted = False
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            pieces[place] = piece if preformatted else SPACE.sub(" ", piece)
        elif _name(piece) == "pre":
            preformatted = not piece.startswith("</")
    return "".join(pieces)


class _Reader:
    """Where a pass over a page stands."""

    def __init__(self) -> None:
        self._skipping = ""  # what ends the part that nobody sees: a name, or the end of a comment
        self._open = ""  # the title or heading being read
        self._named: dict[str, list[str]] = {"title": [], "h1": []}
        self._found: set[str] = set()  # those of them that have words
        self._visible: list[str] = []
        self._canonical = ""

    def text(self, piece: str) -> None:
        if self._skipping:
            return
        if self._open:
            self._named[self._open].append(piece)
            self._found |= {self._open} if piece.strip() else set()
        if self._open != "title":
            self._visible.append(SPACE.sub(" ", piece))

    def tag(self, piece: str) -> None:
        name = _name(piece)
        if self._skipping:
            self._skipping = "" if name == self._skipping and piece.startswith(("</", "-->")) else self._skipping
            return
        if piece.startswith("</"):
            self._open = "" if name == self._open else self._open
        elif not piece.endswith("/>"):
            self._begin(name)
        if name == "link" and not self._canonical:
            self._canonical = _canonical(piece)
        if not INLINE.fullmatch(name):
            self._visible.append("\n")

    def markup(self) -> Markup:
        lines = (" ".join(line.split()) for line in "".join(self._visible).split("\n"))
        title, heading = (" ".join("".join(pieces).split()) for pieces in self._named.values())
        return Markup(title, heading, self._canonical, "\n".join(filter(None, lines)))

    def _begin(self, name: str) -> None:
        if name in SKIPPED:
            self._skipping = SKIPPED[name]
        elif name in self._named and name not in self._found:
            self._open = name


def _name(tag: str) -> str:
    """The name of an element; a comment's mark is its own."""
    name = NAME.match(tag)
    return name[1].lower() if name else tag


def _canonical(link: str) -> str:
    """The address in a link element that names the page's own, else nothing."""
    pairs = ATTRIBUTE.findall(link[:LONGEST_LINK])
    attributes = {name.lower(): _unescaped(value.strip("\"'")).strip() for name, value in pairs}
    address = attributes.get("href", "")
    canonical = "canonical" in attributes.get("rel", "").lower().split()
    return address if canonical and address.startswith(("http://", "https://")) else ""


def _unescaped(text: str) -> str:
    try:
        return unescape(text)
    except ValueError:  # a character number of more digits than Python reads
        return text
