"""The topic of a passage, and the passage's sentences rewritten so that each names the topic."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sleuth.corpus.chunks import sentences
from sleuth.records import Passage
from sleuth.synthesis.cloze.english import Kind, kind_of_noun
from sleuth.synthesis.cloze.lexicon import (
    DISAMBIGUATOR,
    SECTION_SUFFIX,
    Definition,
    Lexicon,
    base_title,
    opens_with_life_dates,
    parse_definition,
    strip_parentheses,
)

ARTICLE = re.compile(r"^(?:The|A|An|In) ")
POSSESSIVE = re.compile(r"['’]s?")
SENTENCE_WORDS = range(5, 46)  # length of usable sentences, in words
MARKUP = re.compile(r"\. [a-z]|(?:^|\s)\"\s|``|https?:|www\.|[<>={}|\[\]•→;]|\s-\s|\.\.\.|\(\s*\)|[^\w\s]{4}|\\")
SENTENCE_END = re.compile(r"[.!?][\"'”’)]*$")
COPULA = re.compile(r",? (?=(?:is|was|are|were)\b)")
LEADING_PRONOUN = re.compile(r"^(?:he|she|it|they|his|her|its|their)\b(?=[ ’'])", re.IGNORECASE)
POSSESSIVE_PRONOUNS = frozenset({"his", "her", "its", "their"})
PERSON_PRONOUNS = frozenset({"he", "she", "his", "her"})
ADVERBIAL_OPENING = re.compile(
    r"^(?:In|On|At|After|Before|During|From|Since|While|When|As|By|Born|Following|With|For|Upon|Between|Until)\b"
)
APPOSITION = re.compile(r"^, (?!and\b|or\b|but\b)[^,;]{3,90}, (?=[a-z])")
QUALIFIED_NAME = re.compile(r"the (?:\d{4} )?[a-z]")
NO_TOPIC = re.compile(r"^Lists? of |\(disambiguation\)$")
PERSON_TITLE = re.compile(
    r"[^\W\da-z][\w.’'-]*(?: "
    r"(?:(?:de|la|las|los|van|von|der|den|di|da|del|bin|al|dos|du|le|of) ){0,2}[^\W\da-z][\w.’'-]*){1,4}$"
)
GLUED_PARENTHESIS = re.compile(r"(?<=\w)\( ?")  # tokenized corpora: Dan Frost( born 1961)
QUALIFIER = re.compile(r"^(?:\d{4} )?[a-z][a-z -]{2,24}$")  # disambiguator that names a kind: 1994 film
SubjectEnd = tuple[int, bool]  # offset of the end of a sentence's subject, and whether it is possessive


@dataclass(frozen=True, slots=True)
class Statement:
    """A self-contained sentence; `subject_end` is set if it begins with the topic as its subject."""

    text: str
    subject_end: int | None


@dataclass(frozen=True, slots=True)
class Topic:
    """The topic of a passage; `name` is the title as used in questions, `opening` the first sentence."""

    passage: Passage
    name: str
    title: str
    kind: Kind | None
    definition: Definition | None
    opening: str
    statements: tuple[Statement, ...]

    @property
    def noun(self) -> str:
        """The noun that defines the topic, or an empty string."""
        return self.definition.noun if self.definition else ""

    def predicates(self) -> Iterator[str]:
        """Yield the predicate of each statement whose subject is the topic."""
        for statement in self.statements:
            if statement.subject_end is not None:
                yield statement.text[statement.subject_end :]


def parse_topic(passage: Passage, lexicon: Lexicon) -> Topic | None:
    """Parse the topic of a passage; None if its title cannot be used in a question."""
    title = base_title(passage.title)
    if (
        NO_TOPIC.search(passage.title)
        or not 2 <= len(title) <= 70
        or MARKUP.search(title)
        or not any(letter.isalpha() for letter in title)
    ):
        return None
    text = _strip_leading_title(GLUED_PARENTHESIS.sub(" (", " ".join(passage.text.split())), title)
    for quoted in (f'"{title}"', f'" {title}"', f'"{title} "', f'"{title},"'):
        text = text.replace(quoted, title)
    definition, biography = parse_definition(text, title), opens_with_life_dates(text, title)
    kind = Kind.PERSON if biography else definition.kind if definition else None
    if kind is Kind.PERSON and not (biography or PERSON_TITLE.match(title)):
        kind = None
    if kind is None and definition is None and PERSON_TITLE.match(title) and title.split()[0] in lexicon.given_names:
        kind = Kind.PERSON
    name = _name_in_questions(passage, title, text)
    split = [sentence.strip() for sentence in sentences(text)]
    statements = tuple(_statements(split, title, name, kind, definition))
    return Topic(passage, name, title, kind, definition, split[0] if split else "", statements)


def _strip_leading_title(text: str, title: str) -> str:
    """Remove the title that Wikipedia dumps repeat before the first sentence: Dust devil A dust devil is ..."""
    rest = text.removeprefix(title).lstrip()
    if rest is text or not rest or not (rest[0].isupper() or rest[0].isdigit()):
        return text
    words = ARTICLE.sub("", rest).split()
    return rest if words and words[0].lower().strip(",") in title.lower() else text


def _name_in_questions(passage: Passage, title: str, text: str) -> str:
    """Return the title with its disambiguator or article, in lower case if it is a common noun."""
    qualifier = DISAMBIGUATOR.search(SECTION_SUFFIX.sub("", passage.title))
    if qualifier and QUALIFIER.match(qualifier[1]) and kind_of_noun(qualifier[1].split()[-1]) is not None:
        return f"the {qualifier[1]} {title}"
    lower = title[0].lower() + title[1:]
    if lower != title and not title[1:].islower() and any(word[:1].isupper() for word in title.split()[1:]):
        return f"the {title}" if text.startswith(f"The {title}") else title
    for article in ("the", "a", "an"):
        if f"{article.capitalize()} {lower}" in text:
            return f"{article} {lower}"
        if text.startswith(f"{article.capitalize()} {title}"):
            return f"{article} {title}"
    return lower if f" {lower}" in text and f" {title}" not in text else title


def _statements(
    split: list[str], title: str, name: str, kind: Kind | None, definition: Definition | None
) -> Iterator[Statement]:
    """Return the sentences that name the topic or can be rewritten to name it."""
    resolvable = False  # whether a pronoun refers to the topic
    for index, sentence in enumerate(split):
        bare = strip_parentheses(sentence)
        subject = _defined_subject(bare, title) if index == 0 and definition else None
        subject = subject or _title_subject(bare, title, kind)
        subject = subject or _anaphoric_subject(bare, kind, definition, resolvable)
        if index == 0 and not subject and title not in bare:
            continue  # passages cut out of an article often begin in the middle of a sentence
        resolvable = bool(subject) or (resolvable and bool(ADVERBIAL_OPENING.match(bare)))
        if not subject and not _contains_title(bare, title):
            continue
        if MARKUP.search(bare) or not SENTENCE_END.search(bare) or bare.count('"') % 2 or "(" in bare or ")" in bare:
            continue
        # "The 1994 film Ed Wood is a 1994 film" would repeat the qualifier.
        qualified = index == 0 and definition and name.endswith(f" {title}") and QUALIFIED_NAME.match(name)
        statement = _rewrite(bare.rstrip(" ."), subject, title, title if qualified else name)
        if statement is not None and len(statement.text.split()) in SENTENCE_WORDS:
            yield statement


def _rewrite(bare: str, subject: SubjectEnd | None, title: str, name: str) -> Statement | None:
    """Replace the subject of a sentence with the name of the topic."""
    if subject is None:
        return Statement(bare, None) if _contains_title(bare, title) and not LEADING_PRONOUN.match(bare) else None
    end, possessive = subject
    if possessive:
        return Statement(f"{name}'s{bare[end:]}", None)
    rest = APPOSITION.sub(" ", bare[end:])
    return Statement(name + rest, len(name)) if rest[:1] == " " and rest[1:2].islower() else None


def _defined_subject(bare: str, title: str) -> SubjectEnd | None:
    """Find the subject of a defining sentence: the title or a longer form of it."""
    found = COPULA.search(bare)
    if found is None or found.start() > 150:
        return None
    before = bare[: found.start()]
    last = title.split()[-1]
    # Ada King, Countess of Lovelace; but not: In 1843, the editor of Ada Lovelace was a ...
    ends_with_title = before.partition(",")[0].endswith(last) or before.endswith(last)
    if "’s " in before or "'s " in before.replace(title, "") or not ends_with_title:
        return None
    return found.start(), False


def _title_subject(bare: str, title: str, kind: Kind | None) -> SubjectEnd | None:
    """Find a subject that is the title, the part of the title before a comma, or a person's surname."""
    names = dict.fromkeys((title, title.partition(",")[0], *([title.split()[-1]] if kind is Kind.PERSON else [])))
    article = ARTICLE.match(bare)
    for name in names:
        for start in dict.fromkeys((0, article.end() if article else 0)):
            if bare[:1].isupper() and bare[start : start + len(name)].casefold() == name.casefold():
                return _word_end(bare, start + len(name))
    return None


def _anaphoric_subject(
    bare: str, kind: Kind | None, definition: Definition | None, resolvable: bool
) -> SubjectEnd | None:
    """Find a subject that is a pronoun or a definite noun phrase for the topic: He, Her, The film."""
    found = LEADING_PRONOUN.match(bare)
    if found and resolvable:
        word = found[0].lower()
        fits = word in PERSON_PRONOUNS if kind is Kind.PERSON else word in {"it", "its"} and kind is not None
        plural = word in {"they", "their"} and kind is Kind.GROUP
        return (found.end(), word in POSSESSIVE_PRONOUNS) if fits or plural else None
    noun = definition.noun if definition and kind is not Kind.PERSON else None
    return _word_end(bare, len(noun) + 4) if noun and bare.startswith(f"The {noun}") else None


def _word_end(bare: str, end: int) -> SubjectEnd | None:
    """Return the end of a subject, including a possessive marker; None if `end` is inside a word."""
    possessive = POSSESSIVE.match(bare, end)
    end = possessive.end() if possessive else end
    return (end, bool(possessive)) if bare[end : end + 1] in (" ", ",") else None


def _contains_title(text: str, title: str) -> bool:
    """Whether the first occurrence of a title in a text is at word boundaries."""
    start = text.find(title)
    around = text[start - 1 : start] if start > 0 else "", text[start + len(title) : start + len(title) + 1]
    return start >= 0 and not any(letter.isalnum() or letter in ("_", "-") for letter in around if letter)
