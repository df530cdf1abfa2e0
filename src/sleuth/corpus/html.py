"""HTML pages: title, canonical address and visible text, and main text extracted by trafilatura."""

import re
from dataclasses import dataclass
from html import unescape

from sleuth.corpus.decoding import clean, decode_html
from sleuth.errors import MissingExtra

# Disjoint tokens in one pass, so that time is linear in the size of a hostile page; the standard library's parser is
# quadratic on unclosed tags and refuses some input.
TAG = re.compile(r"""(<!--|-->|<[A-Za-z/!?](?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+>|<[A-Za-z/!?][^<>]*+>)""")
NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)")
ATTRIBUTE = re.compile(r"""([A-Za-z-]{1,20})\s?=\s?("[^"]*"|'[^']*'|[^\s"'>]+)""")
SPACE = re.compile(r"\s+")
LONGEST_LINK = 4096
MOST_TAGS = 50_000  # more than any article has; the extractor takes seconds, growing with the number of tags

SKIPPED = {"<!--": "-->", **{name: name for name in ("script", "style", "template", "svg", "noscript")}}
INLINE = re.compile(
    r"a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|label|mark|q|s|samp|small|span|strike|strong|sub|"
    r"sup|time|tt|u|var|wbr|<!--|-->"
)


@dataclass(frozen=True, slots=True)
class Markup:
    """Title, first heading, canonical address and visible text of a page, one block per line; empty if missing."""

    title: str
    heading: str
    canonical: str
    text: str


def page_text(html: str | bytes, url: str | None = None) -> tuple[str, str]:
    """Return title ("" if missing) and main text of a page, or all visible text if no main text is found."""
    source = decode_html(html) if isinstance(html, bytes) else clean(html)
    markup = read_markup(source)
    text = _main_text(source, url)
    # For short pages the extractor returns all text, but splits words that contain a tag.
    whole = "".join(text.split()) == "".join(markup.text.split())
    return markup.title or markup.heading, text if text and not whole else markup.text


def _main_text(source: str, url: str | None) -> str:
    try:
        import trafilatura
    except ImportError as error:
        raise MissingExtra("trafilatura", "documents") from error
    if source.count("<") > MOST_TAGS:
        return ""
    try:
        text = trafilatura.extract(_join_lines(source), url=url, include_comments=False)
    except Exception:  # extractors fail on odd pages in many ways; the visible text is still available
        return ""
    lines = (" ".join(line.split()) for line in clean(text or "").splitlines())
    return "\n".join(filter(None, lines))


def _join_lines(html: str) -> str:
    """Replace line breaks in the text of a page with spaces, except in preformatted blocks."""
    pieces = TAG.split(html)
    preformatted = False
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            pieces[place] = piece if preformatted else SPACE.sub(" ", piece)
        elif tag_name(piece) == "pre":
            preformatted = not piece.startswith("</")
    return "".join(pieces)


def read_markup(html: str) -> Markup:
    """Parse any text as HTML; never fails."""
    reader = _MarkupReader()
    for place, piece in enumerate(TAG.split(html)):
        if place % 2:
            reader.read_tag(piece)
        else:
            reader.read_text(unescape_text(piece))
    lines = (" ".join(line.split()) for line in "".join(reader.visible).split("\n"))
    title, heading = (" ".join("".join(pieces).split()) for pieces in reader.named.values())
    return Markup(title, heading, reader.canonical, "\n".join(filter(None, lines)))


class _MarkupReader:
    """Parser state while reading a page."""

    def __init__(self) -> None:
        self.named: dict[str, list[str]] = {"title": [], "h1": []}
        self.visible: list[str] = []
        self.canonical = ""
        self._skip_until = ""  # element or comment that hides text until it is closed
        self._open = ""  # the title or heading being read
        self._found: set[str] = set()  # elements of `named` whose text was found

    def read_text(self, piece: str) -> None:
        if self._skip_until:
            return
        if self._open:
            self.named[self._open].append(piece)
            self._found |= {self._open} if piece.strip() else set()
        if self._open != "title":
            self.visible.append(SPACE.sub(" ", piece))

    def read_tag(self, piece: str) -> None:
        name = tag_name(piece)
        if self._skip_until:
            if name == self._skip_until and piece.startswith(("</", "-->")):
                self._skip_until = ""
            return
        if piece.startswith("</"):
            self._open = "" if name == self._open else self._open
        elif not piece.endswith("/>"):
            if name in SKIPPED:
                self._skip_until = SKIPPED[name]
            elif name in self.named and name not in self._found:
                self._open = name
        if name == "link" and not self.canonical:
            self.canonical = canonical_address(piece)
        if not INLINE.fullmatch(name):
            self.visible.append("\n")


def tag_name(tag: str) -> str:
    """Return the element name of a tag; for a comment, its opening mark."""
    name = NAME.match(tag)
    return name[1].lower() if name else tag


def canonical_address(link: str) -> str:
    """Return the address of a link element with rel="canonical", else ""."""
    pairs = ATTRIBUTE.findall(link[:LONGEST_LINK])
    attributes = {name.lower(): unescape_text(value.strip("\"'")).strip() for name, value in pairs}
    address = attributes.get("href", "")
    canonical = "canonical" in attributes.get("rel", "").lower().split()
    return address if canonical and address.startswith(("http://", "https://")) else ""


def unescape_text(text: str) -> str:
    try:
        return unescape(text)
    except ValueError:  # a character reference with more digits than Python reads
        return text
