"""Documents cut into passages of about as many words as those of wiki-18, on sentence borders."""

import re
from collections.abc import Iterator
from itertools import pairwise

from sleuth.corpus.documents import Document
from sleuth.corpus.sentences import sentences
from sleuth.records import Passage

WORDS = 100
# Han and kana are written without spaces: each character counts as a word, marks stay with the one before.
UNSPACED = r"\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
# What has no spaces for longer than any word (other scripts, addresses, code) counts as several, so that a passage
# is bounded whatever the text.
WORD = re.compile(rf"[{UNSPACED}][\u3001-\u303f\uff00-\uff65]*|[^\s{UNSPACED}]{{1,50}}")


def passages(document: Document, words: int = WORDS) -> Iterator[Passage]:
    """The passages of a document, in order; the id is the document's name with the passage's position."""
    for position, text in enumerate(chunks(document.text, words)):
        extra = {"title": document.title, "url": document.url, "source": document.name, "position": position}
        yield Passage(f"{document.name}#{position}", f'"{document.title}"\n{text}', extra)


def chunks(text: str, words: int = WORDS) -> Iterator[str]:
    """A text, a paragraph a line, in pieces of at most `words` words; each ends where a sentence does if it can.

    A paragraph that does not fit begins a piece of its own where the one before is at least half full.
    """
    held: list[str] = []
    count = 0
    for paragraph in text.splitlines():
        pieces = [(piece, len(WORD.findall(piece))) for piece in _pieces(paragraph.strip(), words)]
        if count * 2 >= words and count + sum(size for _, size in pieces) > words:
            yield from _joined(held)
            held, count = [], 0
        for piece, size in pieces:
            if count + size > words:
                yield from _joined(held)
                held, count = [], 0
            held.append(piece)
            count += size
        held.append("\n")
    yield from _joined(held)


def _joined(held: list[str]) -> Iterator[str]:
    """What was held as one text; nothing where it has no words."""
    lines = (line.strip() for line in "".join(held).split("\n"))
    if text := "\n".join(filter(None, lines)):
        yield text


def _pieces(paragraph: str, words: int) -> Iterator[str]:
    """The sentences of a paragraph, those that are longer than a passage cut between words."""
    for sentence in sentences(paragraph):
        starts = [word.start() for word in WORD.finditer(sentence)]
        cuts = [0, *starts[words::words], len(sentence)]
        yield from (sentence[start:end] for start, end in pairwise(cuts))
