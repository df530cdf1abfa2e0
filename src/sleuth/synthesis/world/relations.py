"""What an encyclopedia of the world tells: every relation with its nouns, sentences and questions.

In sentences {S} and {s} are the subject (its name, or She/she, He/he, It/it), {O} the subject as object (her, him, it),
{V} the value; in questions {X} is the subject, {A} and {B} are two of them.
"""

from dataclasses import dataclass

from sleuth.synthesis.world.census import Kind


@dataclass(frozen=True, slots=True)
class Relation:
    """A functional fact: each subject of `domain` has one value, of `range` or, where that is None, a year."""

    key: str
    domain: Kind
    range: Kind | None
    nouns: tuple[str, str]
    sentences: tuple[str, ...]
    natural: str
    sharing: int = 1  # how many subjects have the same value, at least
    same: str | None = None
    compare: str | None = None


_ALL = (
    Relation(
        key="birthplace",
        domain=Kind.PERSON,
        range=Kind.CITY,
        nouns=("birthplace", "native city"),
        sentences=(
            "{S} was born in the city of {V}.",
            "{V} is the city where {s} was born.",
            "{S} is a native of {V}.",
        ),
        natural="Where was {X} born?",
        sharing=2,
        same="Were {A} and {B} born in the same city?",
    ),
    Relation(
        key="spouse",
        domain=Kind.PERSON,
        range=Kind.PERSON,
        nouns=("spouse", "partner"),
        sentences=(
            "{S} is married to {V}.",
            "{S} and {V} are married to each other.",
            "{V} is the spouse who shares a home with {O}.",
        ),
        natural="Who is {X} married to?",
    ),
    Relation(
        key="employer",
        domain=Kind.PERSON,
        range=Kind.ORGANISATION,
        nouns=("employer", "workplace"),
        sentences=("{S} works for {V}.", "{V} employs {O} to this day.", "{S} earns a living at {V}."),
        natural="Which organisation does {X} work for?",
        sharing=2,
        same="Do {A} and {B} work for the same organisation?",
    ),
    Relation(
        key="mentor",
        domain=Kind.PERSON,
        range=Kind.PERSON,
        nouns=("mentor", "teacher"),
        sentences=("{S} studied for a long time under {V}.", "{V} taught {O} the trade.", "{S} had {V} as a mentor."),
        natural="Who taught {X}?",
        sharing=2,
        same="Were {A} and {B} taught by the same person?",
    ),
    Relation(
        key="born",
        domain=Kind.PERSON,
        range=None,
        nouns=("birth year", "natal year"),
        sentences=("{S} was born in the year {V}.", "{V} is the year in which {s} was born."),
        natural="When was {X} born?",
        compare="Who was born {order}, {A} or {B}?",
    ),
    Relation(
        key="country",
        domain=Kind.CITY,
        range=Kind.COUNTRY,
        nouns=("country", "nation"),
        sentences=(
            "{S} is a city in the country of {V}.",
            "{S} lies within the borders of {V}.",
            "{V} is the country in which {s} lies.",
        ),
        natural="Which country does {X} lie in?",
        sharing=2,
        same="Do {A} and {B} lie in the same country?",
    ),
    Relation(
        key="mayor",
        domain=Kind.CITY,
        range=Kind.PERSON,
        nouns=("mayor", "city leader"),
        sentences=("{S} has {V} as its mayor.", "{V} leads {O} as mayor.", "{S} has elected {V} as its mayor."),
        natural="Who leads {X} as mayor?",
    ),
    Relation(
        key="city_founded",
        domain=Kind.CITY,
        range=None,
        nouns=("founding year", "settlement year"),
        sentences=("{S} was founded in the year {V}.", "Settlers founded {O} in the year {V}.", "{S} dates from {V}."),
        natural="When was {X} founded?",
        compare="Which was founded {order}, {A} or {B}?",
    ),
    Relation(
        key="capital",
        domain=Kind.COUNTRY,
        range=Kind.CITY,
        nouns=("capital", "capital city"),
        sentences=("{S} has {V} as its capital.", "{S} is ruled from its capital, {V}.", "{V} serves {O} as capital."),
        natural="From which city is {X} ruled?",
    ),
    Relation(
        key="country_founded",
        domain=Kind.COUNTRY,
        range=None,
        nouns=("independence year", "liberation year"),
        sentences=("{S} became independent in the year {V}.", "{S} has been an independent country since {V}."),
        natural="When did {X} become independent?",
        compare="Which became independent {order}, {A} or {B}?",
    ),
    Relation(
        key="author",
        domain=Kind.WORK,
        range=Kind.PERSON,
        nouns=("author", "writer"),
        sentences=("{S} is a book by the author {V}.", "{V} is the person who wrote {O}.", "{S} was written by {V}."),
        natural="Who wrote {X}?",
        sharing=2,
        same="Were {A} and {B} written by the same person?",
    ),
    Relation(
        key="publisher",
        domain=Kind.WORK,
        range=Kind.ORGANISATION,
        nouns=("publisher", "publishing house"),
        sentences=(
            "{S} was published by {V}.",
            "{V} is the publisher that printed {O}.",
            "{V} brought {O} to its readers.",
        ),
        natural="Which organisation published {X}?",
        sharing=2,
        same="Were {A} and {B} published by the same organisation?",
    ),
    Relation(
        key="published",
        domain=Kind.WORK,
        range=None,
        nouns=("publication year", "release year"),
        sentences=(
            "{S} was published in the year {V}.",
            "{S} came out in {V}.",
            "Readers first saw {O} in the year {V}.",
        ),
        natural="When was {X} published?",
        compare="Which was published {order}, {A} or {B}?",
    ),
    Relation(
        key="founder",
        domain=Kind.ORGANISATION,
        range=Kind.PERSON,
        nouns=("founder", "creator"),
        sentences=("{S} was founded by {V}.", "{V} is the person who founded {O}.", "{S} began as an idea of {V}."),
        natural="Who founded {X}?",
    ),
    Relation(
        key="headquarters",
        domain=Kind.ORGANISATION,
        range=Kind.CITY,
        nouns=("headquarters", "home city"),
        sentences=(
            "{S} has its headquarters in {V}.",
            "{S} is based in the city of {V}.",
            "{V} is the city where {s} is based.",
        ),
        natural="Where is {X} based?",
        sharing=2,
        same="Are {A} and {B} based in the same city?",
    ),
    Relation(
        key="organisation_founded",
        domain=Kind.ORGANISATION,
        range=None,
        nouns=("establishment year", "opening year"),
        sentences=(
            "{S} was established in the year {V}.",
            "{S} opened its doors in {V}.",
            "In the year {V} {s} was established.",
        ),
        natural="When was {X} established?",
        compare="Which was established {order}, {A} or {B}?",
    ),
)

RELATIONS: dict[str, Relation] = {relation.key: relation for relation in _ALL}
BY_DOMAIN: dict[Kind, tuple[Relation, ...]] = {
    kind: tuple(relation for relation in _ALL if relation.domain is kind) for kind in Kind
}
