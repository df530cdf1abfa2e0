"""Chunking of documents into passages of about 100 words, as in wiki-18, at sentence boundaries."""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType

from sleuth.corpus.documents import Document
from sleuth.records import Passage

HeadingPath = tuple[str, ...]  # headings, outermost first

WORDS = 100
SEPARATOR = " > "
NO_HEADINGS: Mapping[int, int] = MappingProxyType({})
LINE = re.compile(r"^.*$", re.MULTILINE)
HEADING_WORDS = 20  # a longer heading is a paragraph marked up by mistake
# Han and kana are written without spaces: each character counts as a word, with the punctuation that follows it.
UNSPACED = r"\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
# Longer runs without spaces (other scripts, addresses, code) count as several words, which bounds every passage.
WORD = re.compile(rf"[{UNSPACED}][\u3001-\u303f\uff00-\uff65]*|[^\s{UNSPACED}]{{1,50}}")
# Terminal punctuation, closing quotes and brackets, and spaces (optional in scripts without spaces).
BOUNDARY = re.compile(
    r"""(?<![.!?…‽؟۔।։])[.!?…‽؟۔।։]++["'”’»)\]]*+\s++|(?<![。！？｡])(?P<unspaced>[。！？｡]++)["'”’」』）》】\s]*+"""
)
WORD_BEFORE = re.compile(r"[\w.&-]{1,20}$")
ABBREVIATIONS = frozenset(
    """
    dr mr mrs ms mx prof rev hon st sr jr messrs mme mlle gen col maj capt cmdr lt sgt adm gov sen rep pres supt
    eds trans op cit al etc cf ca approx viz vs ibid inc ltd co corp bros dept univ assn ave blvd mt ft
    jan feb apr jun jul aug sep sept oct nov dec resp incl esp abbr bzw usw vgl hrsg
    """.split()  # noqa: SIM905 - a table of a hundred words is read as lines
)
BEFORE_NUMBERS = frozenset(
    {"no", "nos", "nr", "art", "vol", "vols", "p", "pp", "fig", "figs", "eq", "eqs", "sec", "ch"}
)


def passages(document: Document, words: int = WORDS) -> Iterator[Passage]:
    """Yield the passages of a document, titled with its title and the path of the headings above: `Guide > Install`."""
    for position, (path, text) in enumerate(_cut(document.text, words, document.headings)):
        below = path[1:] if path[:1] == (document.title,) else path
        section = SEPARATOR.join(heading for heading in below if len(WORD.findall(heading)) <= HEADING_WORDS)
        title = SEPARATOR.join(filter(None, (document.title, section)))
        extra: dict[str, object] = {"title": title, "url": document.url, "source": document.name, "position": position}
        extra |= {"section": section} if section else {}
        extra |= {"language": document.language} if document.language else {}
        yield Passage(f"{document.name}#{position}", f'"{title}"\n{text}', extra)


def chunks(text: str, words: int = WORDS, headings: Mapping[int, int] = NO_HEADINGS) -> Iterator[str]:
    """Yield chunks of at most `words` words from a text with one paragraph per line, cut between sentences if possible.

    A paragraph that does not fit, or follows a heading, starts a new chunk if the current one is at least half full.
    Lines whose numbers are in `headings` stay with the text below them.
    """
    return (chunk for _, chunk in _cut(text, words, headings))


def _cut(text: str, words: int, headings: Mapping[int, int]) -> Iterator[tuple[HeadingPath, str]]:
    """Yield chunks, each with the headings that all of its text is below."""
    pending: list[tuple[HeadingPath, str]] = []
    count = 0
    for path, lead, paragraph in _paragraphs(text, headings):
        pieces = [(piece, len(WORD.findall(piece))) for piece in _pieces(lead, paragraph, words)]
        if count * 2 >= words and (lead or count + sum(size for _, size in pieces) > words):
            yield from _joined(pending)
            pending, count = [], 0
        for piece, size in pieces:
            if count + size > words:
                yield from _joined(pending)
                pending, count = [], 0
            pending.append((path, piece))
            count += size
        pending.append((path, "\n"))
    yield from _joined(pending)


def _paragraphs(text: str, headings: Mapping[int, int]) -> Iterator[tuple[HeadingPath, str, str]]:
    """Yield every paragraph with the headings it is below, outermost first, and the heading lines directly above it."""
    above: list[tuple[int, str]] = []  # level and text
    lead = ""
    path: HeadingPath = ()
    for number, found in enumerate(LINE.finditer(text)):  # a list of the lines could take ten times the memory
        line = found[0].rstrip()
        if line and number in headings:
            level, heading = headings[number], line.strip().rstrip(" :{")
            above = [outer for outer in above if outer[0] < level] + [(level, heading)]
            path, lead = tuple(each for _, each in above), f"{lead}{line}\n"
        elif line:
            yield path, lead, line
            lead = ""
    if lead:
        yield path, "", lead


def _joined(pieces: list[tuple[HeadingPath, str]]) -> Iterator[tuple[HeadingPath, str]]:
    """Yield the pieces joined into one text, with the headings they share; nothing if there are no words."""
    lines = (line.rstrip() for line in "".join(piece for _, piece in pieces).split("\n"))
    if text := "\n".join(filter(None, lines)):
        paths = {path for path, _ in pieces}
        first = min(paths, key=len)
        shared = next((size for size in range(len(first), 0, -1) if len({path[:size] for path in paths}) == 1), 0)
        yield first[:shared], text


def _pieces(lead: str, paragraph: str, words: int) -> Iterator[str]:
    """Yield the sentences of a paragraph, the first with its headings; sentences above `words` words are cut."""
    first, *others = sentences(paragraph)
    for sentence in (lead + first, *others):
        starts = [word.start() for word in WORD.finditer(sentence)]
        cuts = [0, *starts[words::words], len(sentence)]
        yield from (sentence[start:end] for start, end in pairwise(cuts))


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, each with its trailing spaces, whose concatenation is the paragraph."""
    boundaries = (boundary for boundary in BOUNDARY.finditer(paragraph) if boundary.end() < len(paragraph))
    ends = (boundary.end() for boundary in boundaries if _ends_sentence(paragraph, boundary))
    return [paragraph[start:end] for start, end in pairwise([0, *ends, len(paragraph)]) if start < end]


def _ends_sentence(text: str, boundary: re.Match[str]) -> bool:
    """Check whether punctuation ends a sentence: not after an abbreviation, not before a lower-case letter."""
    following = text[boundary.end()]
    if boundary["unspaced"]:
        return True
    if following.islower():
        return False
    before = WORD_BEFORE.search(text, max(0, boundary.start() - 20), boundary.start())
    return before is None or boundary[0].rstrip() != "." or not _is_abbreviation(before[0], following)


def _is_abbreviation(word: str, following: str) -> bool:
    """Whether a word is a title such as Dr., an initial, or contains full stops, as in U.S."""
    lower = word.lower()
    known = lower in ABBREVIATIONS or (lower in BEFORE_NUMBERS and following.isdigit())
    return known or (len(word) == 1 and word.isalpha()) or "." in word
