"""What a passage says of its subject in so many words: relations by name, each with its value as it stands there."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sleuth.synthesis.cloze.spans import BEHIND, BETWEEN, DEMONYM, SEVERAL, WORD
from sleuth.synthesis.cloze.topic import Topic


class Relation(StrEnum):
    """What can be said of a subject that others are compared or reached by."""

    BORN = "born"
    DIED = "died"
    BIRTHPLACE = "birthplace"
    DEATHPLACE = "place of death"
    NATIONALITY = "nationality"
    TRADE = "occupation"
    FATHER = "father"
    MOTHER = "mother"
    HUSBAND = "husband"
    WIFE = "wife"
    SIBLING = "sibling"
    SCHOOL = "school"
    TEAM = "team"
    DIRECTOR = "director"
    WRITER = "writer"
    COMPOSER = "composer"
    PRODUCER = "producer"
    CREATOR = "creator"
    AUTHOR = "author"
    PERFORMER = "performer"
    LABEL = "label"
    ALBUM = "album"
    PUBLISHER = "publisher"
    RELEASED = "released"
    GENRE = "genre"
    FOUNDED = "founded"
    FOUNDER = "founder"
    SEAT = "seat"
    OWNER = "owner"
    LIES_IN = "lies in"
    COUNTRY = "country"
    POPULATION = "population"


@dataclass(frozen=True, slots=True)
class Fact:
    """A value as the passage has it, and other words for it."""

    value: str
    aliases: tuple[str, ...] = ()


Facts = dict[Relation, Fact]
NAME = rf"{WORD}(?: (?:{BETWEEN} )?{WORD})*"
SHORT = r"(?:of|de la|de|la|le|del|upon|sur|am|di|do|da|dos|el|al)"
# A hyphen behind a letter belongs to the word: with two ways to read it, the time grows exponentially.
CAPITAL = rf"{WORD}(?:(?: |(?<=\.)-)(?:{SHORT} )?{WORD})*"
PLACE = rf"{CAPITAL}(?:, {CAPITAL}){{0,3}}"
MONTHLY = re.compile(r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December)\b")
CUT = frozenset({"Dr", "Mr", "Mrs", "St", "Jr", "Sr", "Hong", "The", "A", "An", "He", "She", "It", "They"})
NAMED = re.compile(r"^[^\d]{2,60}$")


def predicates(topic: Topic) -> Iterator[str]:
    """What sentences say of the subject, from the verb on."""
    for statement in topic.statements:
        if statement.subject is not None:
            yield statement.text[statement.subject :]


def one_name(text: str, found: re.Match[str], group: str = "name") -> str | None:
    """The name that was found, if it stands alone: neither one of several nor part of a longer phrase."""
    name, behind = found[group].partition(" of the ")[0].rstrip(","), text[found.end(group) :]
    first = name.partition(" ")[0]
    if (
        SEVERAL.match(behind)
        or not BEHIND.match(behind)
        or DEMONYM.match(first)
        or name in CUT
        or not NAMED.search(name)
    ):
        return None
    return name


def place(text: str, behind: str = "") -> Fact | None:
    """A place with what it lies in, which alone also counts; None where the words are no place, or part of a phrase."""
    if MONTHLY.search(text) or not NAMED.search(text) or DEMONYM.match(text) or not BEHIND.match(behind):
        return None
    short = text.partition(",")[0]
    if short in CUT:
        return None
    return Fact(text, (short,) if short != text else ())
