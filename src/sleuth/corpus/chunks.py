"""Documents cut into passages of about as many words as those of wiki-18, on sentence borders."""

import re
from collections.abc import Iterator, Set
from itertools import pairwise

from sleuth.corpus.documents import Document
from sleuth.corpus.sentences import sentences
from sleuth.records import Passage

WORDS = 100
HEADING_WORDS = 20  # a longer one is a paragraph that was marked by mistake, and names nothing
# Han and kana are written without spaces: each character counts as a word, marks stay with the one before.
UNSPACED = r"\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
# What has no spaces for longer than any word (other scripts, addresses, code) counts as several, so that a passage
# is bounded whatever the text.
WORD = re.compile(rf"[{UNSPACED}][\u3001-\u303f\uff00-\uff65]*|[^\s{UNSPACED}]{{1,50}}")


def passages(document: Document, words: int = WORDS) -> Iterator[Passage]:
    """The passages of a document, in order; the id is the document's name with the passage's position.

    One that lies in a single section has the section's heading in its title.
    """
    for position, (heading, text) in enumerate(_cut(document.text, words, document.headings)):
        title = _title(document.title, heading)
        extra = {"title": title, "url": document.url, "source": document.name, "position": position}
        yield Passage(f"{document.name}#{position}", f'"{title}"\n{text}', extra)


def chunks(text: str, words: int = WORDS, headings: Set[int] = frozenset()) -> Iterator[str]:
    """A text, a paragraph a line, in pieces of at most `words` words; each ends where a sentence does if it can.

    A paragraph that does not fit begins a piece of its own where the one before is at least half full; so does one
    under a heading, even if it fits. Lines whose numbers are in `headings` stay with the text below them.
    """
    return (piece for _, piece in _cut(text, words, headings))


def _title(title: str, heading: str) -> str:
    named = heading != title and 0 < len(WORD.findall(heading)) <= HEADING_WORDS
    return f"{title}: {heading}" if named else title


def _cut(text: str, words: int, headings: Set[int]) -> Iterator[tuple[str, str]]:
    """The pieces of a text, each with the heading it lies under; "" where there is none or several."""
    held: list[tuple[str, str]] = []
    count = 0
    for section, lead, paragraph in _blocks(text, headings):
        pieces = [(piece, len(WORD.findall(piece))) for piece in _pieces(lead, paragraph, words)]
        if count * 2 >= words and (lead or count + sum(size for _, size in pieces) > words):
            yield from _joined(held)
            held, count = [], 0
        for piece, size in pieces:
            if count + size > words:
                yield from _joined(held)
                held, count = [], 0
            held.append((section, piece))
            count += size
        held.append((section, "\n"))
    yield from _joined(held)


def _blocks(text: str, headings: Set[int]) -> Iterator[tuple[str, str, str]]:
    """Every paragraph behind the heading of its section and the lines of headings right above it."""
    section = lead = ""
    for number, line in enumerate(map(str.strip, text.splitlines())):
        if line and number in headings:
            section, lead = line, f"{lead}{line}\n"
        elif line:
            yield section, lead, line
            lead = ""
    if lead:
        yield section, "", lead


def _joined(held: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What was held as one text, behind the heading that all of it is under; nothing where it has no words."""
    sections = {section for section, _ in held}
    lines = (line.strip() for line in "".join(piece for _, piece in held).split("\n"))
    if text := "\n".join(filter(None, lines)):
        yield sections.pop() if len(sections) == 1 else "", text


def _pieces(lead: str, paragraph: str, words: int) -> Iterator[str]:
    """The sentences of a paragraph, the first behind its headings; what is longer than a passage is cut at words."""
    first, *others = sentences(paragraph)
    for sentence in (lead + first, *others):
        starts = [word.start() for word in WORD.finditer(sentence)]
        cuts = [0, *starts[words::words], len(sentence)]
        yield from (sentence[start:end] for start, end in pairwise(cuts))
