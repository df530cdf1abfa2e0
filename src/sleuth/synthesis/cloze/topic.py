"""What a passage is about, and its sentences made to stand alone: each names what it speaks of."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sleuth.corpus.sentences import sentences
from sleuth.records import Passage
from sleuth.synthesis.cloze.lexicon import ASIDE, SECTION, Definition, Lexicon, definition, is_life, plain, unbracketed
from sleuth.synthesis.cloze.nouns import Kind, kind_of

ARTICLE = re.compile(r"^(?:The|A|An|In) ")
OWNED = re.compile(r"['’]s?")
WORDS = range(5, 46)  # of a sentence that is asked about
UNCLEAN = re.compile(r"\. [a-z]|(?:^|\s)\"\s|``|https?:|www\.|[<>={}|\[\]•→;]|\s-\s|\.\.\.|\(\s*\)|[^\w\s]{4}|\\")
ENDED = re.compile(r"[.!?][\"'”’)]*$")
BE = re.compile(r",? (?=(?:is|was|are|were)\b)")
LEADING = re.compile(r"^(?:he|she|it|they|his|her|its|their)\b(?=[ ’'])", re.IGNORECASE)
OWNING = frozenset({"his", "her", "its", "their"})
OF_PEOPLE = frozenset({"he", "she", "his", "her"})
ON_THE_WAY = re.compile(
    r"^(?:In|On|At|After|Before|During|From|Since|While|When|As|By|Born|Following|With|For|Upon|Between|Until)\b"
)
APPOSED = re.compile(r"^, (?!and\b|or\b|but\b)[^,;]{3,90}, (?=[a-z])")
ASIDE_NOUN = re.compile(r"the (?:\d{4} )?[a-z]")
NO_SUBJECT = re.compile(r"^Lists? of |\(disambiguation\)$")
PERSONAL = re.compile(
    r"[^\W\da-z][\w.’'-]*(?: "
    r"(?:(?:de|la|las|los|van|von|der|den|di|da|del|bin|al|dos|du|le|of) ){0,2}[^\W\da-z][\w.’'-]*){1,4}$"
)
GLUED = re.compile(r"(?<=\w)\( ?")  # corpora cut by tokenizers: Dan Frost( born 1961)
MEANT = re.compile(r"^(?:\d{4} )?[a-z][a-z -]{2,24}$")  # of an aside that says what is meant: 1994 film


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence that stands alone; its subject ends at `subject` where it begins with what the passage is about."""

    text: str
    subject: int | None


@dataclass(frozen=True, slots=True)
class Topic:
    """What a passage is about; `name` is how questions call it, and `opening` its first sentence as it stands."""

    passage: Passage
    name: str
    title: str
    kind: Kind | None
    defined: Definition | None
    opening: str
    statements: tuple[Statement, ...]


def topic(passage: Passage, lexicon: Lexicon) -> Topic | None:
    """What a passage is about; None where its title cannot stand in a question."""
    title = plain(passage.title)
    if (
        NO_SUBJECT.search(passage.title)
        or not 2 <= len(title) <= 70
        or UNCLEAN.search(title)
        or not any(letter.isalpha() for letter in title)
    ):
        return None
    text = _undoubled(GLUED.sub(" (", " ".join(passage.text.split())), title)
    for quoted in (f'"{title}"', f'" {title}"', f'"{title} "', f'"{title},"'):
        text = text.replace(quoted, title)
    defined = definition(text, title)
    kind = Kind.PERSON if is_life(text, title) else defined.kind if defined else None
    if kind is Kind.PERSON and not (is_life(text, title) or PERSONAL.match(title)):
        kind = None
    if kind is None and defined is None and PERSONAL.match(title) and title.split()[0] in lexicon.given:
        kind = Kind.PERSON
    name = _name(passage, title, text)
    told = [sentence.strip() for sentence in sentences(text)]
    found = tuple(_statements(told, title, name, kind, defined))
    return Topic(passage, name, title, kind, defined, told[0] if told else "", found)


def _undoubled(text: str, title: str) -> str:
    """Wikipedia's dumps put the title before the first sentence: Dust devil A dust devil is ..."""
    rest = text.removeprefix(title).lstrip()
    if rest is text or not rest or not (rest[0].isupper() or rest[0].isdigit()):
        return text
    words = ARTICLE.sub("", rest).split()
    return rest if words and words[0].lower().strip(",") in title.lower() else text


def _name(passage: Passage, title: str, text: str) -> str:
    """The title as a question has it: with what is meant by it, and small where it is no name."""
    aside = ASIDE.search(SECTION.sub("", passage.title))
    if aside and MEANT.match(aside[1]) and kind_of(aside[1].split()[-1]) is not None:
        return f"the {aside[1]} {title}"
    small = title[0].lower() + title[1:]
    if title[1:] == small[1:] and small != title and not title[1:].islower():
        rest = title.split()[1:]
        if any(word[:1].isupper() for word in rest):
            return f"the {title}" if text.startswith(f"The {title}") else title
    for article in ("the", "a", "an"):
        if f"{article.capitalize()} {small}" in text:
            return f"{article} {small}"
        if text.startswith(f"{article.capitalize()} {title}"):
            return f"{article} {title}"
    return small if f" {small}" in text and f" {title}" not in text else title


def _statements(
    told: list[str], title: str, name: str, kind: Kind | None, defined: Definition | None
) -> Iterator[Statement]:
    """The sentences that name what they speak of, or can be made to."""
    certain = False  # whether a pronoun means the title
    for place, sentence in enumerate(told):
        bare = unbracketed(sentence)
        subject = _opening(bare, title, defined) if place == 0 else None
        subject = subject or _named(bare, title, kind) or _meant(bare, kind, defined, certain)
        if place == 0 and not subject and title not in bare:
            continue  # passages cut out of an article often begin in the middle of a sentence
        certain = bool(subject) or (certain and bool(ON_THE_WAY.match(bare)))
        if not subject and not _holds(bare, title):
            continue
        if UNCLEAN.search(bare) or not ENDED.search(bare) or bare.count('"') % 2 or "(" in bare or ")" in bare:
            continue
        # "The 1994 film Ed Wood is a 1994 film" says it twice.
        called = title if place == 0 and defined and name.endswith(f" {title}") and ASIDE_NOUN.match(name) else name
        statement = _standing(bare.rstrip(" ."), subject, title, called)
        if statement is not None and len(statement.text.split()) in WORDS:
            yield statement


def _standing(bare: str, subject: tuple[int, bool] | None, title: str, name: str) -> Statement | None:
    if subject is not None:
        end, owned = subject
        rest = bare[end:]
        if not owned:
            rest = APPOSED.sub(" ", rest)
            return Statement(name + rest, len(name)) if rest[:1] == " " and rest[1:2].islower() else None
        return Statement(f"{name}'s{rest}", None)
    if _holds(bare, title) and not LEADING.match(bare):
        return Statement(bare, None)
    return None


def _opening(bare: str, title: str, defined: Definition | None) -> tuple[int, bool] | None:
    """Where the subject of a defining sentence ends, whatever it is called there in full."""
    found = BE.search(bare) if defined else None
    if found is None or found.start() > 150:
        return None
    before = bare[: found.start()]
    last = title.split()[-1]
    first = before.partition(",")[0]
    # Ada King, Countess of Lovelace; but not: In 1843, the editor of Ada Lovelace was a ...
    if "’s " in before or "'s " in before.replace(title, "") or not (first.endswith(last) or before.endswith(last)):
        return None
    return found.start(), False


def _named(bare: str, title: str, kind: Kind | None) -> tuple[int, bool] | None:
    """Where the title ends that a sentence begins with, or a person's surname."""
    short = title.partition(",")[0]
    called = dict.fromkeys((title, short, *([title.split()[-1]] if kind is Kind.PERSON else [])))
    article = ARTICLE.match(bare)
    start = article.end() if article else 0
    for each in called:
        for begin in {0, start}:
            if bare[:1].isupper() and bare[begin : begin + len(each)].casefold() == each.casefold():
                return _until(bare, begin + len(each))
    return None


def _until(bare: str, end: int) -> tuple[int, bool] | None:
    """The end of a subject, with the mark of an owner behind it; None in the middle of a word."""
    owned = OWNED.match(bare, end)
    end = owned.end() if owned else end
    return (end, bool(owned)) if bare[end : end + 1] in (" ", ",") else None


def _holds(text: str, title: str) -> bool:
    """Whether a title stands in a text as whole words."""
    place = text.find(title)
    around = text[place - 1 : place] if place > 0 else "", text[place + len(title) : place + len(title) + 1]
    return place >= 0 and not any(letter.isalnum() or letter in ("_", "-") for letter in around if letter)


def _meant(bare: str, kind: Kind | None, defined: Definition | None, certain: bool) -> tuple[int, bool] | None:
    """Where a pronoun or a noun ends that stands for the title: He, Her, The film."""
    found = LEADING.match(bare)
    if found and certain:
        word = found[0].lower()
        fits = word in OF_PEOPLE if kind is Kind.PERSON else word in {"it", "its"} and kind is not None
        plural = word in {"they", "their"} and kind is Kind.GROUP
        return (found.end(), word in OWNING) if fits or plural else None
    noun = defined.noun if defined and kind is not Kind.PERSON else None
    return _until(bare, len(noun) + 4) if noun and bare.startswith(f"The {noun}") else None
