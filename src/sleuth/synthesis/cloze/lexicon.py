"""Lexicon learned from a corpus: what its titles denote, and which words are given names or places."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sleuth.records import Passage
from sleuth.synthesis.cloze.english import COUNTRIES, Kind, kind_of_noun

DISAMBIGUATOR = re.compile(r"(?<!\s)\s*+\(([^()]*+)\)\s*+$")  # Winner (band)
SECTION_SUFFIX = re.compile(r"(?<!\s)\s++-(?:\s.*+)?$", re.DOTALL)  # Olkusz - Notable people
PARENTHESES = re.compile(r"(?<!\s)\s*+\([^()]*+\)(?=[\s,.;:]|$)")
LIFE_DATES = re.compile(  # bounded repetition keeps matching linear
    r"\((?:[^()]{0,220}?\b(?:born|b\.|died|né|née)\b|[^()]{0,220}?\b\d{4}\s{0,9}[–—-]\s{0,9}(?:[^()]{0,220}\b)?\d{4}|"
    r"[^()]{0,220}?\b\d{4}[A-Z][^()]{0,220}\d{4}\))"
)
DEFINITION = re.compile(
    r"^[^.;:]{2,160}?,? (?P<copula>is|was|are|were) (?:(?P<article>an?|the|one of the)\s)?"
    r"(?P<phrase>[^,.;:()\"]{2,100})"
)
PHRASE_END = re.compile(
    r"\b(?:who|whom|whose|that|which|where|in|on|of|by|from|for|at|to|with|and|or|as|based|located|situated|set|born|best|"
    r"known|near|about|between|during|since|under|through|after|produced|starring|featuring|using|"
    r"(?:co-)?[a-z]{3,}ed|written|built|sung|made|held)\b"
)
DEFINING_VERB = re.compile(r"\b(?:is|was|are|were|by|refer|refers)\b|:")
NAME_LIST = re.compile(r"\b(?:surname|family name|given name|may refer|people with)\b")
CAPITAL = r"[A-ZÀ-ÖØ-Þ][\w’'-]+(?: [A-ZÀ-ÖØ-Þ][\w’'-]+){0,2}"
PLACE_CONTEXT = re.compile(
    rf"\b(?:born|died|located|situated|based|raised|headquartered|city|town|village|county|district|lived|buried) in "
    rf"(?:the )?({CAPITAL}(?:, {CAPITAL})*)(?=[\s.,;)])"
)
PERSON_CONTEXT = re.compile(
    rf"\b(?:directed|written|composed|novelist|actor|actress|director|starring)(?: by)? ({CAPITAL})\b"
)
PRONOUN = re.compile(r"\b(?:he|she|his|her)\b", re.IGNORECASE)
HONORIFIC = re.compile(
    r"^(?:(?:Sir|Dame|Lord|Lady|King|Queen|Prince|Princess|Count|Countess|Duke|Duchess|Emperor|Empress|Dr\.?|Captain|"
    r"Colonel|General|President|Saint|St\.) )+"
)
GENDER_RATIO = 4  # minimum ratio of one gender to the other for a given name to count as female or male
NOUN = re.compile(r"^[a-z]{3,}(?<!ed)(?<!ing)(?<!ly)(?<!al)(?<!ic)$")
UNINFORMATIVE_NOUNS = frozenset(
    """
    first second third last same name term type form list result given title used one set part kind way use state body
    number amount process able common large small late early only best most more other people person word system
    """.split()  # noqa: SIM905 - read as lines
)
MIN_COUNT = 2  # occurrences before a name counts as a given name or a place
GIVEN_NAME = re.compile(r"^[A-Z][^\W\d_]+$")
TITLES_OF_NOBILITY = frozenset({"The", "Saint", "King", "Queen", "Lord", "Lady", "Sir", "Prince", "Princess"})


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition in an opening sentence: in "X is an English punk band", `noun` is band."""

    phrase: str
    noun: str
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class TitleEntry:
    """What a title of the corpus denotes."""

    kind: Kind | None
    noun: str | None


@dataclass(slots=True)
class Lexicon:
    """Titles without disambiguators, their corpus rows, and names by type."""

    titles: dict[str, TitleEntry] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)
    given_names: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    ambiguous: set[str] = field(default_factory=set)
    people: frozenset[str] = frozenset()
    female_names: frozenset[str] = frozenset()
    male_names: frozenset[str] = frozenset()

    @classmethod
    def from_passages(cls, passages: Iterable[tuple[int, Passage]]) -> "Lexicon":
        """Build a lexicon from (corpus row, passage) pairs."""
        full_titles: dict[str, str] = {}
        lexicon, first_names = cls(), Counter[str]()
        places, people, female, male = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        entries: dict[str, Counter[TitleEntry]] = defaultdict(Counter)
        for row, passage in passages:
            title, text = base_title(passage.title), passage.text
            lexicon.rows.setdefault(title, []).append(row)
            if full_titles.setdefault(title, passage.title) != passage.title:
                lexicon.ambiguous.add(title)
            places.update(name for found in PLACE_CONTEXT.findall(text) for name in found.split(", "))
            people.update(PERSON_CONTEXT.findall(text))
            entry = _title_entry(text[:400], title)
            if entry is None:
                continue
            entries[title][entry] += 1
            if entry.kind is Kind.PERSON and " " in title and entries[title].total() == 1:
                first = title.split()[0]
                first_names[first] += 1
                pronoun = PRONOUN.search(text)
                if pronoun:
                    (female if pronoun[0].lower() in ("she", "her") else male)[first] += 1
        lexicon.titles = {title: _majority(found) for title, found in entries.items()}
        countries = (country for country in COUNTRIES if country in lexicon.rows)
        lexicon.titles |= {country: TitleEntry(Kind.PLACE, "country") for country in countries}
        names = {name for name, count in first_names.items() if count >= MIN_COUNT and GIVEN_NAME.match(name)}
        lexicon.given_names = frozenset(names - TITLES_OF_NOBILITY)
        lexicon.places = frozenset(
            name for name, count in places.items() if count >= MIN_COUNT and count > people[name]
        )
        lexicon.people = frozenset(name for name, count in people.items() if " " in name and count > places[name])
        lexicon.female_names = frozenset(name for name, count in female.items() if count > GENDER_RATIO * male[name])
        lexicon.male_names = frozenset(name for name, count in male.items() if count > GENDER_RATIO * female[name])
        return lexicon

    def is_female_name(self, name: str) -> bool | None:
        """Whether a given name is female, judged by pronouns in the corpus; None if unknown."""
        first = HONORIFIC.sub("", name).partition(" ")[0]
        return True if first in self.female_names else False if first in self.male_names else None

    def is_person(self, name: str) -> bool:
        """Whether a name is the title of a page about a person, or starts with a known given name."""
        entry = self.titles.get(name)
        if entry is not None:
            return entry.kind is Kind.PERSON
        first = HONORIFIC.sub("", name).partition(" ")[0]
        return " " in name and any(first in names for names in (self.given_names, self.female_names, self.male_names))


def base_title(title: str) -> str:
    """Remove section and disambiguator from a title."""
    return DISAMBIGUATOR.sub("", SECTION_SUFFIX.sub("", title)).strip() or title


def strip_parentheses(text: str) -> str:
    """Remove parenthesised text, one level deep."""
    return PARENTHESES.sub("", text)


def opens_with_life_dates(text: str, title: str) -> bool:
    """Whether a text opens with the title followed by life dates: Ada Lovelace (1815-1852) was ..."""
    found = LIFE_DATES.search(text, 0, 220)
    words, before = title.split(), text[: found.start()] if found else ""
    # Dates after a definition belong to someone else: Shure is a surname. ... Ann Shure (born 1952) ...
    if not words or words[0] not in before or words[-1] not in before or DEFINING_VERB.search(before):
        return False
    return len(words) > 1 or (len(before) < len(title) + 30 and not NAME_LIST.search(text[:200]))


def parse_definition(text: str, title: str) -> Definition | None:
    """Parse the definition of the title in the opening sentence; None if there is none."""
    found = DEFINITION.match(strip_parentheses(text[:400]))
    words = title.split()
    if found is None or not words or words[-1].lower() not in text[: found.end()].lower():
        return None
    phrase = found["phrase"]
    end = PHRASE_END.search(phrase)
    phrase = (phrase[: end.start()] if end else phrase).strip()
    noun = phrase.split()[-1] if phrase else ""
    if not noun or not found["article"]:
        return None
    kind = kind_of_noun(noun.removesuffix("s") if found["copula"] == "are" else noun)
    # "A documentary film and television producer" is not a film.
    if end and end[0] in ("and", "or") and kind is not Kind.PERSON:
        return None
    return Definition(phrase, noun, kind)


def _majority(found: Counter[TitleEntry]) -> TitleEntry:
    """Return the entry with the most frequent kind among the passages of a title."""
    kinds = Counter[Kind | None]()
    for entry, count in found.items():
        kinds[entry.kind] += count
    kind, count = kinds.most_common(1)[0]
    if 2 * count <= kinds.total():
        return TitleEntry(None, None)
    return next(entry for entry, _ in found.most_common() if entry.kind is kind)


def _title_entry(opening: str, title: str) -> TitleEntry | None:
    if opens_with_life_dates(opening, title):
        return TitleEntry(Kind.PERSON, None)
    defined = parse_definition(opening, title)
    if defined is None:
        return None
    if defined.kind is not None:
        return TitleEntry(defined.kind, defined.noun)
    informative = NOUN.match(defined.noun) and defined.noun not in UNINFORMATIVE_NOUNS
    return TitleEntry(Kind.THING, defined.noun) if informative else None
