"""Documents of a corpus: which document a passage belongs to, and the name by which a question can refer to it."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sleuth.records import Passage
from sleuth.synthesis.vocabulary import word_set

MIN_SITE_DOCUMENTS = 5  # a title part shared by this many documents, and this share of them, names the whole site
SITE_SHARE = 0.05
LONGEST_NAME = 70  # characters
OPENING = 250  # characters in which the text of an encyclopedia names and defines its title
ENCYCLOPEDIC_SHARE = 0.15  # Wikipedia corpora have 0.22 to 0.76, manuals at most 0.08
SECTION = re.compile(r"\s\([^()]{1,60}\)$|\s-\s[^-]{1,60}$")
COPULA = re.compile(r"\b(?:is|was|are|were)\b")
SEPARATOR = re.compile(r"\s[—–|·-]\s")
NUMBERING = re.compile(r"^(?:(?:Chapter|Appendix|Section|Part)\s)?(?:[0-9]{1,3}|[A-Z]{1,2})(?:\.[0-9]{1,3})*\.\s")
# Titles that say nothing about their document, which then has no name.
EMPTY_TITLES = word_set(
    """
    index readme overview introduction contents home untitled documentation document notes license changelog faq
    reference tutorial summary abstract preface appendix
    """
)


def document_of(passage: Passage) -> str:
    """Return the document of a passage: its source file, else its id before "#", else its title."""
    source = passage.extra.get("source")
    if isinstance(source, str) and source:
        return source
    before, mark, position = passage.id.rpartition("#")
    return before if mark and position.isdigit() else passage.title or passage.id


@dataclass(frozen=True, slots=True)
class DocumentNames:
    """Names of documents for questions: their titles without numbering and without the name of the site."""

    sites: frozenset[str] = frozenset()

    @classmethod
    def from_passages(cls, passages: Iterable[Passage]) -> "DocumentNames":
        """Find the title parts that most documents share, such as "Python 3.11 documentation"."""
        ends: dict[str, set[str]] = defaultdict(set)
        documents: set[str] = set()
        for passage in passages:
            document = document_of(passage)
            documents.add(document)
            for part in SEPARATOR.split(passage.title)[1:]:
                ends[part.strip()].add(document)
        least = max(MIN_SITE_DOCUMENTS, SITE_SHARE * len(documents))
        return cls(frozenset(part for part, found in ends.items() if len(found) >= least))

    def name(self, passage: Passage) -> str | None:
        """Return the name of the passage's document or section; None if its title says nothing about it."""
        parts = [part.strip(" ¶\"'") for part in SEPARATOR.split(passage.title)]
        kept = [part for part in parts if part and part not in self.sites]
        name = NUMBERING.sub("", kept[0]).strip() if kept else ""
        if len(name) > LONGEST_NAME or len(name) < 2 or name.casefold() in EMPTY_TITLES or not _has_letters(name):
            return None
        return name


def _has_letters(text: str) -> bool:
    return any(character.isalpha() for character in text)


def in_scope(scope: str | None, preposition: str = "in") -> str:
    """Return " in NAME", with quotation marks around names of several words; "" without a scope."""
    if scope is None:
        return ""
    return f' {preposition} "{scope}"' if " " in scope else f" {preposition} {scope}"


def is_encyclopedic(passages: Iterable[Passage]) -> bool:
    """Whether passages read like an encyclopedia: a sentence near their beginning says what their title is."""
    opening = total = 0
    for passage in passages:
        total += 1
        title = SECTION.sub("", passage.title).strip().casefold()
        lines = passage.text[:OPENING].casefold().splitlines() if title else []
        # After the title in the same line: a heading is a line of its own.
        opening += any(COPULA.search(line.partition(title)[2]) for line in lines)
    return total > 0 and opening >= ENCYCLOPEDIC_SHARE * total
