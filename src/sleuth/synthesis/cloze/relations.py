"""The words of each relation: how its value is asked for, what that is called elsewhere, and what it may be."""

from dataclasses import dataclass

from sleuth.synthesis.cloze.facts import Relation
from sleuth.synthesis.cloze.nouns import Kind

PEOPLE = frozenset({Kind.PERSON})
MAKERS = frozenset({Kind.PERSON, Kind.GROUP})
PLACES = frozenset({Kind.PLACE})
SCREEN = frozenset(
    """
    director filmmaker producer screenwriter writer actor actress animator cinematographer playwright comedian
    editor dramatist documentarian choreographer musician
    """.split()  # noqa: SIM905 - read as lines
)
MUSIC = frozenset(
    """
    singer songwriter musician composer rapper guitarist pianist vocalist drummer bassist producer singer-songwriter
    artist dj lyricist saxophonist trumpeter violinist entertainer actor actress band duo group trio
    """.split()  # noqa: SIM905
)
LETTERS = frozenset(
    """
    writer author novelist poet playwright journalist essayist philosopher historian screenwriter dramatist critic
    scholar professor academic economist scientist physicist biologist politician priest theologian editor cartoonist
    illustrator biographer activist
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Words:
    """Templates with {x} for the subject; `called` names the value by it, where the value is of one of the `kinds`.

    {noun} is what the subject is; someone reached must have one of `trades`, or a passage that names the subject.
    """

    asks: tuple[str, ...]
    kind: Kind
    called: tuple[str, ...] = ()
    kinds: frozenset[Kind] = frozenset()
    trades: frozenset[str] = frozenset()


WORDS: dict[Relation, Words] = {
    Relation.BORN: Words(
        ("When was {x} born?", "What is the date of birth of {x}?", "On what date was {x} born?",
         "What is the birth date of {x}?", "When is {x}'s birthday?"),
        Kind.DATE,
    ),
    Relation.DIED: Words(
        ("When did {x} die?", "What is the date of death of {x}?", "On what date did {x} die?",
         "What was the date of {x}'s death?", "When was {x}'s death?"),
        Kind.DATE,
    ),
    Relation.BIRTHPLACE: Words(
        ("Where was {x} born?", "What is the place of birth of {x}?", "In what city was {x} born?",
         "Where is the birthplace of {x}?", "What is {x}'s birthplace?"),
        Kind.PLACE,
        ("the birthplace of {x}", "the place where {x} was born", "{x}'s birthplace", "the place of birth of {x}"),
        PLACES,
    ),
    Relation.DEATHPLACE: Words(
        ("Where did {x} die?", "What is the place of death of {x}?", "Where was the place of death of {x}?",
         "In what place did {x} die?"),
        Kind.PLACE,
        ("the place where {x} died", "the place of death of {x}"),
        PLACES,
    ),
    Relation.NATIONALITY: Words(
        ("What nationality is {x}?", "What is the nationality of {x}?", "Which country is {x} from?",
         "What is {x}'s nationality?", "What country is {x} from?"),
        Kind.NATIONALITY,
    ),
    Relation.TRADE: Words(
        ("What is {x}'s occupation?", "What is the occupation of {x}?", "What does {x} do for a living?",
         "What is {x}'s profession?", "What is {x} known as by profession?"),
        Kind.OCCUPATION,
    ),
    Relation.FATHER: Words(
        ("Who is the father of {x}?", "Who is {x}'s father?", "Who was the father of {x}?"), Kind.PERSON,
        ("the father of {x}", "{x}'s father"), PEOPLE,
    ),
    Relation.MOTHER: Words(
        ("Who is the mother of {x}?", "Who is {x}'s mother?", "Who was the mother of {x}?"), Kind.PERSON,
        ("the mother of {x}", "{x}'s mother"), PEOPLE,
    ),
    Relation.HUSBAND: Words(
        ("Who is the husband of {x}?", "Who was {x}'s husband?", "Who is the spouse of {x}?",
         "Who is {x} married to?"), Kind.PERSON,
        ("the husband of {x}", "{x}'s husband", "the spouse of {x}"), PEOPLE,
    ),
    Relation.WIFE: Words(
        ("Who is the wife of {x}?", "Who was {x}'s wife?", "Who is the spouse of {x}?", "Who is {x} married to?"),
        Kind.PERSON, ("the wife of {x}", "{x}'s wife", "the spouse of {x}"), PEOPLE,
    ),
    Relation.SIBLING: Words(
        ("Who is the sibling of {x}?", "Who is {x}'s sibling?"), Kind.PERSON,
        ("the sibling of {x}", "{x}'s sibling"), PEOPLE,
    ),
    Relation.SCHOOL: Words(
        ("Where did {x} study?", "Where was {x} educated?", "Which school did {x} attend?",
         "Which institution did {x} attend?"), Kind.GROUP,
        ("the school that {x} attended", "the institution where {x} studied"), frozenset({Kind.GROUP}),
    ),
    Relation.TEAM: Words(
        ("Which team does {x} play for?", "What team does {x} play for?", "Who does {x} play for?"), Kind.GROUP,
        ("the team that {x} plays for", "the club for which {x} plays"), frozenset({Kind.GROUP}),
    ),
    Relation.DIRECTOR: Words(
        ("Who is the director of {x}?", "Who directed {x}?", "Who was the director of {x}?",
         "{x} was directed by whom?"),
        Kind.PERSON,
        ("the director of {x}", "the person who directed {x}", "the filmmaker who directed {x}", "{x}'s director",
         "the director of {x}"),
        PEOPLE, SCREEN,
    ),
    Relation.WRITER: Words(
        ("Who wrote {x}?", "Who is the writer of {x}?", "Who was the screenwriter for {x}?"), Kind.PERSON,
        ("the writer of {x}", "the person who wrote {x}"), PEOPLE, SCREEN | MUSIC | LETTERS,
    ),
    Relation.COMPOSER: Words(
        ("Who composed {x}?", "Who is the composer of {x}?", "Who was the composer of {x}?"), Kind.PERSON,
        ("the composer of {x}", "the person who composed {x}"), PEOPLE, MUSIC,
    ),
    Relation.PRODUCER: Words(
        ("Who produced {x}?", "Who is the producer of {x}?", "Who was the producer of {x}?"), Kind.PERSON,
        ("the producer of {x}", "the person who produced {x}"), PEOPLE, SCREEN | MUSIC,
    ),
    Relation.CREATOR: Words(
        ("Who created {x}?", "Who is the creator of {x}?"), Kind.PERSON,
        ("the creator of {x}", "the person who created {x}"), MAKERS, SCREEN | LETTERS,
    ),
    Relation.AUTHOR: Words(
        ("Who is the author of {x}?", "Who wrote {x}?", "{x} was written by whom?"), Kind.PERSON,
        ("the author of {x}", "the writer of {x}", "the person who wrote {x}"), PEOPLE, LETTERS,
    ),
    Relation.PERFORMER: Words(
        ("Who is the performer of {x}?", "Who performed {x}?", "Who recorded {x}?", "{x} is by which artist?"),
        Kind.PERSON,
        ("the performer of {x}", "the artist who recorded {x}", "{x}'s performer"), MAKERS, MUSIC,
    ),
    Relation.LABEL: Words(
        ("Which record label released {x}?", "What record label was {x} released on?", "What is the label of {x}?"),
        Kind.GROUP, ("the record label that released {x}", "the label of {x}"), frozenset({Kind.GROUP}),
    ),
    Relation.ALBUM: Words(
        ("Which album is {x} from?", "What album does {x} appear on?", "{x} is from which album?"), Kind.WORK,
        ("the album that includes {x}", "the album that {x} is from"), frozenset({Kind.WORK}),
    ),
    Relation.PUBLISHER: Words(
        ("Who is the publisher of {x}?", "Who published {x}?", "Which company published {x}?"), Kind.GROUP,
        ("the publisher of {x}", "the company that published {x}"), frozenset({Kind.GROUP}),
    ),
    Relation.RELEASED: Words(
        ("When was {x} released?", "When did {x} come out?", "What is the release date of {x}?"), Kind.DATE,
    ),
    Relation.GENRE: Words(
        ("What genre is {x}?", "What is the genre of {x}?", "What kind of {noun} is {x}?",
         "What genre does {x} belong to?"),
        Kind.GENRE,
    ),
    Relation.FOUNDED: Words(("When was {x} founded?", "When was {x} established?", "When did {x} begin?"), Kind.DATE),
    Relation.FOUNDER: Words(
        ("Who founded {x}?", "Who is the founder of {x}?", "{x} was founded by whom?"), Kind.PERSON,
        ("the founder of {x}", "the person who founded {x}"), PEOPLE,
    ),
    Relation.SEAT: Words(
        ("Where is {x} based?", "Where is {x} from?", "Which place is {x} based in?"), Kind.PLACE,
        ("the place where {x} is based", "the place that {x} is from"), PLACES,
    ),
    Relation.OWNER: Words(
        ("Who owns {x}?", "Who is the owner of {x}?", "{x} is owned by whom?"), Kind.GROUP,
        ("the owner of {x}", "the company that owns {x}"), frozenset({Kind.GROUP}),
    ),
    Relation.LIES_IN: Words(
        ("Where is {x} located?", "Where is {x}?", "In what place is {x} located?"), Kind.PLACE,
        ("the place where {x} is located", "the location of {x}"), PLACES,
    ),
    Relation.COUNTRY: Words(
        ("In which country is {x} located?", "Which country is {x} located in?", "What country is {x} in?",
         "In what country is {x}?"), Kind.PLACE,
        ("the country where {x} is located", "the country that {x} is located in"), PLACES,
    ),
    Relation.POPULATION: Words(
        ("What is the population of {x}?", "How many people live in {x}?", "What was the population of {x}?"),
        Kind.NUMBER,
    ),
}  # fmt: skip
# What makers did, as a question says it.
DID = {
    Relation.DIRECTOR: "directed",
    Relation.WRITER: "wrote",
    Relation.AUTHOR: "wrote",
    Relation.COMPOSER: "composed",
    Relation.PRODUCER: "produced",
    Relation.CREATOR: "created",
    Relation.PERFORMER: "recorded",
    Relation.FOUNDER: "founded",
}
# The composition of two relations that has a name of its own.
KIN: dict[tuple[Relation, Relation], str] = {
    (Relation.FATHER, Relation.FATHER): "paternal grandfather",
    (Relation.FATHER, Relation.MOTHER): "paternal grandmother",
    (Relation.MOTHER, Relation.FATHER): "maternal grandfather",
    (Relation.MOTHER, Relation.MOTHER): "maternal grandmother",
    (Relation.HUSBAND, Relation.FATHER): "father-in-law",
    (Relation.WIFE, Relation.FATHER): "father-in-law",
    (Relation.HUSBAND, Relation.MOTHER): "mother-in-law",
    (Relation.WIFE, Relation.MOTHER): "mother-in-law",
}
IN_YEAR = {
    Relation.BORN: ("When was {x} born?", "In what year was {x} born?", "What year was {x} born?"),
    Relation.DIED: ("When did {x} die?", "In what year did {x} die?", "What year did {x} die?"),
    Relation.RELEASED: ("When was {x} released?", "In what year was {x} released?", "What year did {x} come out?"),
    Relation.FOUNDED: ("When was {x} founded?", "In what year was {x} founded?", "What year was {x} established?"),
}
FROM = ("Which country is {x} from?", "What country is {x} from?")
# What is said instead of some nouns: bands are formed, books are published.
INSTEAD = {
    **dict.fromkeys(("band", "group", "duo", "trio", "quartet"), (("founded", "formed"), ("established", "formed"))),
    **dict.fromkeys(
        ("novel", "novella", "book", "magazine", "newspaper", "poem", "story", "journal"),
        (("released", "published"), ("release date", "publication date")),
    ),
}


def asks(relation: Relation, value: str, noun: str, of: Kind | None) -> tuple[str, ...]:
    """The questions for a value of a relation, as they are put of such a thing."""
    if relation is Relation.NATIONALITY and of is not Kind.PERSON:
        return FROM
    texts = IN_YEAR[relation] if relation in IN_YEAR and value.isdigit() else WORDS[relation].asks
    if relation in (Relation.RELEASED, Relation.FOUNDED):
        for word, other in INSTEAD.get(noun, ()):
            texts = tuple(dict.fromkeys(text.replace(word, other) for text in texts))
    return tuple(text.replace("{noun}", noun) for text in texts)
