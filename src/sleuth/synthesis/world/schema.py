"""Schema of the generated world: entity kinds, id ranges of the train and test splits, and relations.

Placeholders in relation sentences: {S} and {s} are the subject (its name, or She/she, He/he, It/it), {O} the subject
as object (her, him, it), {V} the value. In questions {X} is the subject; {A} and {B} are two subjects.
"""

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from sleuth.errors import InputError

Split = Literal["train", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")
MIN_PASSAGES, MAX_PASSAGES = 100, 1_000_000


class Kind(StrEnum):
    PERSON = "person"
    CITY = "city"
    COUNTRY = "country"
    WORK = "work"
    ORGANISATION = "organisation"


@dataclass(frozen=True, slots=True)
class IdRange:
    """The entity ids of one kind in one split: start .. start + size - 1."""

    kind: Kind
    split: Split
    start: int
    size: int


def entity_counts(passages: int) -> dict[Kind, int]:
    """Return the number of entities per kind; the numbers add up to `passages`."""
    if not MIN_PASSAGES <= passages <= MAX_PASSAGES:
        raise InputError(
            f"invalid world size: {passages} passages; give a number from {MIN_PASSAGES} to {MAX_PASSAGES}"
        )
    people = passages // 16 * 8  # a multiple of eight, so that everyone in either split has a spouse
    countries, rest = max(4, passages // 50), passages * 15 // 100
    cities = passages - people - countries - 2 * rest
    return {Kind.PERSON: people, Kind.CITY: cities, Kind.COUNTRY: countries, Kind.WORK: rest, Kind.ORGANISATION: rest}


class IdRanges:
    """Assigns entity ids kind by kind, the train split of a kind before its test split."""

    def __init__(self, passages: int) -> None:
        self.ranges: list[IdRange] = []
        self.kind_start: dict[Kind, int] = {}
        start = 0
        for kind, count in entity_counts(passages).items():
            self.kind_start[kind] = start
            held_out = max(2, count // 4)
            self.ranges.append(IdRange(kind, "train", start, count - held_out))
            self.ranges.append(IdRange(kind, "test", start + count - held_out, held_out))
            start += count
        self._starts = [each.start for each in self.ranges]
        self._by_key = {(each.kind, each.split): each for each in self.ranges}

    def of(self, entity: int) -> IdRange:
        """Return the id range that contains an entity."""
        return self.ranges[bisect_right(self._starts, entity) - 1]

    def get(self, kind: Kind, split: Split) -> IdRange:
        return self._by_key[kind, split]


@dataclass(frozen=True, slots=True)
class Relation:
    """A functional relation: each subject of kind `domain` has a value of kind `range`, or a year if None."""

    key: str
    domain: Kind
    range: Kind | None
    nouns: tuple[str, str]
    sentences: tuple[str, ...]
    natural: str  # question template
    sharing: int = 1  # minimum number of subjects with the same value
    same: str | None = None  # yes/no question template for two subjects
    compare: str | None = None  # comparison template for two subjects


_RELATIONS = (
    Relation(
        "birthplace", Kind.PERSON, Kind.CITY, ("birthplace", "native city"),
        ("{S} was born in the city of {V}.", "{V} is the city where {s} was born.", "{S} is a native of {V}."),
        "Where was {X} born?", sharing=2, same="Were {A} and {B} born in the same city?",
    ),
    Relation(
        "spouse", Kind.PERSON, Kind.PERSON, ("spouse", "partner"),
        ("{S} is married to {V}.", "{S} and {V} are married to each other.",
         "{V} is the spouse who shares a home with {O}."),
        "Who is {X} married to?",
    ),
    Relation(
        "employer", Kind.PERSON, Kind.ORGANISATION, ("employer", "workplace"),
        ("{S} works for {V}.", "{V} employs {O} to this day.", "{S} earns a living at {V}."),
        "Which organisation does {X} work for?", sharing=2, same="Do {A} and {B} work for the same organisation?",
    ),
    Relation(
        "mentor", Kind.PERSON, Kind.PERSON, ("mentor", "teacher"),
        ("{S} studied for a long time under {V}.", "{V} taught {O} the trade.", "{S} had {V} as a mentor."),
        "Who taught {X}?", sharing=2, same="Were {A} and {B} taught by the same person?",
    ),
    Relation(
        "born", Kind.PERSON, None, ("birth year", "natal year"),
        ("{S} was born in the year {V}.", "{V} is the year in which {s} was born."),
        "When was {X} born?", compare="Who was born {order}, {A} or {B}?",
    ),
    Relation(
        "country", Kind.CITY, Kind.COUNTRY, ("country", "nation"),
        ("{S} is a city in the country of {V}.", "{S} lies within the borders of {V}.",
         "{V} is the country in which {s} lies."),
        "Which country does {X} lie in?", sharing=2, same="Do {A} and {B} lie in the same country?",
    ),
    Relation(
        "mayor", Kind.CITY, Kind.PERSON, ("mayor", "city leader"),
        ("{S} has {V} as its mayor.", "{V} leads {O} as mayor.", "{S} has elected {V} as its mayor."),
        "Who leads {X} as mayor?",
    ),
    Relation(
        "city_founded", Kind.CITY, None, ("founding year", "settlement year"),
        ("{S} was founded in the year {V}.", "Settlers founded {O} in the year {V}.", "{S} dates from {V}."),
        "When was {X} founded?", compare="Which was founded {order}, {A} or {B}?",
    ),
    Relation(
        "capital", Kind.COUNTRY, Kind.CITY, ("capital", "capital city"),
        ("{S} has {V} as its capital.", "{S} is ruled from its capital, {V}.", "{V} serves {O} as capital."),
        "From which city is {X} ruled?",
    ),
    Relation(
        "country_founded", Kind.COUNTRY, None, ("independence year", "liberation year"),
        ("{S} became independent in the year {V}.", "{S} has been an independent country since {V}."),
        "When did {X} become independent?", compare="Which became independent {order}, {A} or {B}?",
    ),
    Relation(
        "author", Kind.WORK, Kind.PERSON, ("author", "writer"),
        ("{S} is a book by the author {V}.", "{V} is the person who wrote {O}.", "{S} was written by {V}."),
        "Who wrote {X}?", sharing=2, same="Were {A} and {B} written by the same person?",
    ),
    Relation(
        "publisher", Kind.WORK, Kind.ORGANISATION, ("publisher", "publishing house"),
        ("{S} was published by {V}.", "{V} is the publisher that printed {O}.", "{V} brought {O} to its readers."),
        "Which organisation published {X}?", sharing=2, same="Were {A} and {B} published by the same organisation?",
    ),
    Relation(
        "published", Kind.WORK, None, ("publication year", "release year"),
        ("{S} was published in the year {V}.", "{S} came out in {V}.", "Readers first saw {O} in the year {V}."),
        "When was {X} published?", compare="Which was published {order}, {A} or {B}?",
    ),
    Relation(
        "founder", Kind.ORGANISATION, Kind.PERSON, ("founder", "creator"),
        ("{S} was founded by {V}.", "{V} is the person who founded {O}.", "{S} began as an idea of {V}."),
        "Who founded {X}?",
    ),
    Relation(
        "headquarters", Kind.ORGANISATION, Kind.CITY, ("headquarters", "home city"),
        ("{S} has its headquarters in {V}.", "{S} is based in the city of {V}.",
         "{V} is the city where {s} is based."),
        "Where is {X} based?", sharing=2, same="Are {A} and {B} based in the same city?",
    ),
    Relation(
        "organisation_founded", Kind.ORGANISATION, None, ("establishment year", "opening year"),
        ("{S} was established in the year {V}.", "{S} opened its doors in {V}.",
         "In the year {V} {s} was established."),
        "When was {X} established?", compare="Which was established {order}, {A} or {B}?",
    ),
)  # fmt: skip
RELATIONS: dict[str, Relation] = {relation.key: relation for relation in _RELATIONS}
BY_DOMAIN: dict[Kind, tuple[Relation, ...]] = {
    kind: tuple(relation for relation in _RELATIONS if relation.domain is kind) for kind in Kind
}
