"""What a corpus says of its own titles: what each names, and which words are given names."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sleuth.records import Passage
from sleuth.synthesis.cloze.nations import COUNTRIES
from sleuth.synthesis.cloze.nouns import Kind, kind_of

ASIDE = re.compile(r"(?<!\s)\s*+\(([^()]*+)\)\s*+$")  # what tells titles apart: Winner (band)
SECTION = re.compile(r"(?<!\s)\s++-(?:\s.*+)?$", re.DOTALL)  # Olkusz - Notable people
BRACKETS = re.compile(r"(?<!\s)\s*+\([^()]*+\)(?=[\s,.;:]|$)")
LIVED = re.compile(  # what is looked at is no longer than the repeats
    r"\((?:[^()]{0,220}?\b(?:born|b\.|died|né|née)\b|[^()]{0,220}?\b\d{4}\s{0,9}[–—-]\s{0,9}(?:[^()]{0,220}\b)?\d{4}|"
    r"[^()]{0,220}?\b\d{4}[A-Z][^()]{0,220}\d{4}\))"
)
DEFINED = re.compile(
    r"^[^.;:]{2,160}?,? (?P<be>is|was|are|were) (?:(?P<article>an?|the|one of the)\s)?"
    r"(?P<phrase>[^,.;:()\"]{2,100})"
)
STOP = re.compile(
    r"\b(?:who|whom|whose|that|which|where|in|on|of|by|from|for|at|to|with|and|or|as|based|located|situated|set|born|best|"
    r"known|near|about|between|during|since|under|through|after|produced|starring|featuring|using|"
    r"(?:co-)?[a-z]{3,}ed|written|built|sung|made|held)\b"
)
VERB = re.compile(r"\b(?:is|was|are|were|by|refer|refers)\b|:")
LISTED = re.compile(r"\b(?:surname|family name|given name|may refer|people with)\b")
CAPITAL = r"[A-ZÀ-ÖØ-Þ][\w’'-]+(?: [A-ZÀ-ÖØ-Þ][\w’'-]+){0,2}"
LIES_IN = re.compile(
    rf"\b(?:born|died|located|situated|based|raised|headquartered|city|town|village|county|district|lived|buried) in "
    rf"(?:the )?({CAPITAL}(?:, {CAPITAL})*)(?=[\s.,;)])"
)
MADE_BY = re.compile(rf"\b(?:directed|written|composed|novelist|actor|actress|director|starring)(?: by)? ({CAPITAL})\b")
PRONOUN = re.compile(r"\b(?:he|she|his|her)\b", re.IGNORECASE)
HONORED = re.compile(
    r"^(?:(?:Sir|Dame|Lord|Lady|King|Queen|Prince|Princess|Count|Countess|Duke|Duchess|Emperor|Empress|Dr\.?|Captain|"
    r"Colonel|General|President|Saint|St\.) )+"
)
SURELY = 4  # times as many women as men bear a name that is a woman's
NOUN = re.compile(r"^[a-z]{3,}(?<!ed)(?<!ing)(?<!ly)(?<!al)(?<!ic)$")
NO_NOUNS = frozenset(
    """
    first second third last same name term type form list result given title used one set part kind way use state body
    number amount process able common large small late early only best most more other people person word system
    """.split()  # noqa: SIM905 - read as lines
)
COMMON = 2  # people of a corpus with a given name before it is one
GIVEN = re.compile(r"^[A-Z][^\W\d_]+$")


@dataclass(frozen=True, slots=True)
class Definition:
    """What an opening sentence calls its subject: `phrase` is an English punk band, `noun` is band."""

    be: str
    phrase: str
    noun: str
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A title of the corpus, and what it names."""

    kind: Kind | None
    noun: str | None


@dataclass(slots=True)
class Lexicon:
    """Titles as they stand in sentences, without what tells them apart; one of two meanings is left out."""

    titles: dict[str, Entry] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    ambiguous: set[str] = field(default_factory=set)
    people: frozenset[str] = frozenset()
    women: frozenset[str] = frozenset()
    men: frozenset[str] = frozenset()

    @classmethod
    def learned(cls, passages: Iterable[tuple[int, Passage]]) -> "Lexicon":
        """Reads the opening sentence of each passage; rows are those of the corpus."""
        full: dict[str, str] = {}
        lexicon, people, places, makers = cls(), Counter[str](), Counter[str](), Counter[str]()
        hers, his = Counter[str](), Counter[str]()
        entries: dict[str, Counter[Entry]] = defaultdict(Counter)
        for row, passage in passages:
            title = plain(passage.title)
            lexicon.rows.setdefault(title, []).append(row)
            entry = _entry(passage, title)
            if full.setdefault(title, passage.title) != passage.title:
                lexicon.ambiguous.add(title)
            text = passage.text
            places.update(each for found in LIES_IN.findall(text) for each in found.split(", "))
            makers.update(MADE_BY.findall(text))
            if entry is None:
                continue
            entries[title][entry] += 1
            if entry.kind is Kind.PERSON and " " in title and entries[title].total() == 1:
                first = title.split()[0]
                people[first] += 1
                pronoun = PRONOUN.search(text)
                if pronoun:
                    (hers if pronoun[0].lower() in ("she", "her") else his)[first] += 1
        lexicon.titles = {title: _agreed(found) for title, found in entries.items()}
        lexicon.titles |= {country: Entry(Kind.PLACE, "country") for country in COUNTRIES if country in lexicon.rows}
        names = (name for name, count in people.items() if count >= COMMON and GIVEN.match(name))
        lexicon.given = frozenset(names) - {
            "The",
            "Saint",
            "King",
            "Queen",
            "Lord",
            "Lady",
            "Sir",
            "Prince",
            "Princess",
        }
        lexicon.places = frozenset(name for name, count in places.items() if count >= COMMON and count > makers[name])
        lexicon.people = frozenset(name for name, count in makers.items() if " " in name and count > places[name])
        lexicon.women = frozenset(name for name, count in hers.items() if count > SURELY * his[name])
        lexicon.men = frozenset(name for name, count in his.items() if count > SURELY * hers[name])
        return lexicon

    def is_woman(self, name: str) -> bool | None:
        """What the given name says, by the pronouns of those in the corpus who have it; None where it says nothing."""
        first = HONORED.sub("", name).partition(" ")[0]
        return True if first in self.women else False if first in self.men else None

    def is_person(self, name: str) -> bool:
        """Whether a name is that of a person: a title that names one, or one with a given name."""
        entry = self.titles.get(name)
        if entry is not None:
            return entry.kind is Kind.PERSON
        first = HONORED.sub("", name).partition(" ")[0]
        return " " in name and (first in self.given or first in self.women or first in self.men)


def plain(title: str) -> str:
    """A title without what tells it apart from others."""
    return ASIDE.sub("", SECTION.sub("", title)).strip() or title


def unbracketed(text: str) -> str:
    """A text without what stands in brackets, one level deep."""
    return BRACKETS.sub("", text)


def is_life(text: str, title: str) -> bool:
    """Whether a text opens with the dates of a life: Ada Lovelace (1815-1852) was ..."""
    found = LIVED.search(text, 0, 220)
    words, before = title.split(), text[: found.start()] if found else ""
    # What is defined before the brackets is not whom they are about: Shure is a surname. ... Ann Shure (born 1952) ...
    if not words or words[0] not in before or words[-1] not in before or VERB.search(before):
        return False
    return len(words) > 1 or (len(before) < len(title) + 30 and not LISTED.search(text[:200]))


def definition(text: str, title: str) -> Definition | None:
    """What the opening sentence of a text calls the title; None where it opens otherwise."""
    found = DEFINED.match(unbracketed(text[:400]))
    words = title.split()
    if found is None or not words or words[-1].lower() not in text[: found.end()].lower():
        return None
    phrase = found["phrase"]
    stop = STOP.search(phrase)
    phrase = (phrase[: stop.start()] if stop else phrase).strip()
    noun = phrase.split()[-1] if phrase else ""
    if not noun or not found["article"]:
        return None
    kind = kind_of(noun.removesuffix("s") if found["be"] == "are" else noun)
    # "A documentary film and television producer" is no film.
    if stop and stop[0] in ("and", "or") and kind is not Kind.PERSON:
        return None
    return Definition(found["be"], phrase, noun, kind)


def _agreed(found: Counter[Entry]) -> Entry:
    """What most of the passages with a title say that it names."""
    kinds = Counter[Kind | None]()
    for entry, count in found.items():
        kinds[entry.kind] += count
    kind, count = kinds.most_common(1)[0]
    if 2 * count <= kinds.total():
        return Entry(None, None)
    return next(entry for entry, _ in found.most_common() if entry.kind is kind)


def _entry(passage: Passage, title: str) -> Entry | None:
    opening = passage.text[:400]
    defined = definition(opening, title)
    if is_life(opening, title):
        return Entry(Kind.PERSON, None)
    if defined is None:
        return None
    if defined.kind is None:
        return Entry(Kind.THING, defined.noun) if NOUN.match(defined.noun) and defined.noun not in NO_NOUNS else None
    return Entry(defined.kind, defined.noun)
