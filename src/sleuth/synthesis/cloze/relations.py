"""Relations stated in passages, and the question templates for each relation and comparison.

Placeholders: {x} is the topic and {noun} its defining noun. In comparisons {a} and {b} are the topics, {noun} is their
common noun, and {value} their common value.
"""

from dataclasses import dataclass
from enum import StrEnum

from sleuth.synthesis.cloze.english import Kind


class Relation(StrEnum):
    """A relation between the topic of a passage and a value stated there."""

    BORN = "born"
    DIED = "died"
    BIRTHPLACE = "birthplace"
    DEATHPLACE = "place of death"
    NATIONALITY = "nationality"
    OCCUPATION = "occupation"
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
    BASED_IN = "based in"
    OWNER = "owner"
    LOCATED_IN = "located in"
    COUNTRY = "country"
    POPULATION = "population"


@dataclass(frozen=True, slots=True)
class Fact:
    """The value of a relation as written in the passage, and its aliases."""

    value: str
    aliases: tuple[str, ...] = ()


Facts = dict[Relation, Fact]
PEOPLE = frozenset({Kind.PERSON})
PEOPLE_AND_GROUPS = frozenset({Kind.PERSON, Kind.GROUP})
PLACES = frozenset({Kind.PLACE})
GROUPS = frozenset({Kind.GROUP})
FILM_OCCUPATIONS = frozenset(
    """
    director filmmaker producer screenwriter writer actor actress animator cinematographer playwright comedian
    editor dramatist documentarian choreographer musician
    """.split()  # noqa: SIM905 - read as lines
)
MUSIC_OCCUPATIONS = frozenset(
    """
    singer songwriter musician composer rapper guitarist pianist vocalist drummer bassist producer singer-songwriter
    artist dj lyricist saxophonist trumpeter violinist entertainer actor actress band duo group trio
    """.split()  # noqa: SIM905
)
WRITING_OCCUPATIONS = frozenset(
    """
    writer author novelist poet playwright journalist essayist philosopher historian screenwriter dramatist critic
    scholar professor academic economist scientist physicist biologist politician priest theologian editor cartoonist
    illustrator biographer activist
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Template:
    """Question templates of a relation, and descriptions of its value for bridge questions.

    The value can be the topic of another passage whose kind is in `targets` and, if `occupations` is not empty, which
    has one of these occupations.
    """

    questions: tuple[str, ...]
    kind: Kind
    descriptions: tuple[str, ...] = ()
    targets: frozenset[Kind] = frozenset()
    occupations: frozenset[str] = frozenset()


TEMPLATES: dict[Relation, Template] = {
    Relation.BORN: Template(
        ("When was {x} born?", "What is the date of birth of {x}?", "On what date was {x} born?",
         "What is the birth date of {x}?", "When is {x}'s birthday?"),
        Kind.DATE,
    ),
    Relation.DIED: Template(
        ("When did {x} die?", "What is the date of death of {x}?", "On what date did {x} die?",
         "What was the date of {x}'s death?", "When was {x}'s death?"),
        Kind.DATE,
    ),
    Relation.BIRTHPLACE: Template(
        ("Where was {x} born?", "What is the place of birth of {x}?", "In what city was {x} born?",
         "Where is the birthplace of {x}?", "What is {x}'s birthplace?"),
        Kind.PLACE,
        ("the birthplace of {x}", "the place where {x} was born", "{x}'s birthplace", "the place of birth of {x}"),
        PLACES,
    ),
    Relation.DEATHPLACE: Template(
        ("Where did {x} die?", "What is the place of death of {x}?", "Where was the place of death of {x}?",
         "In what place did {x} die?"),
        Kind.PLACE,
        ("the place where {x} died", "the place of death of {x}"),
        PLACES,
    ),
    Relation.NATIONALITY: Template(
        ("What nationality is {x}?", "What is the nationality of {x}?", "Which country is {x} from?",
         "What is {x}'s nationality?", "What country is {x} from?"),
        Kind.NATIONALITY,
    ),
    Relation.OCCUPATION: Template(
        ("What is {x}'s occupation?", "What is the occupation of {x}?", "What does {x} do for a living?",
         "What is {x}'s profession?", "What is {x} known as by profession?"),
        Kind.OCCUPATION,
    ),
    Relation.FATHER: Template(
        ("Who is the father of {x}?", "Who is {x}'s father?", "Who was the father of {x}?"), Kind.PERSON,
        ("the father of {x}", "{x}'s father"), PEOPLE,
    ),
    Relation.MOTHER: Template(
        ("Who is the mother of {x}?", "Who is {x}'s mother?", "Who was the mother of {x}?"), Kind.PERSON,
        ("the mother of {x}", "{x}'s mother"), PEOPLE,
    ),
    Relation.HUSBAND: Template(
        ("Who is the husband of {x}?", "Who was {x}'s husband?", "Who is the spouse of {x}?",
         "Who is {x} married to?"), Kind.PERSON,
        ("the husband of {x}", "{x}'s husband", "the spouse of {x}"), PEOPLE,
    ),
    Relation.WIFE: Template(
        ("Who is the wife of {x}?", "Who was {x}'s wife?", "Who is the spouse of {x}?", "Who is {x} married to?"),
        Kind.PERSON, ("the wife of {x}", "{x}'s wife", "the spouse of {x}"), PEOPLE,
    ),
    Relation.SIBLING: Template(
        ("Who is the sibling of {x}?", "Who is {x}'s sibling?"), Kind.PERSON,
        ("the sibling of {x}", "{x}'s sibling"), PEOPLE,
    ),
    Relation.SCHOOL: Template(
        ("Where did {x} study?", "Where was {x} educated?", "Which school did {x} attend?",
         "Which institution did {x} attend?"), Kind.GROUP,
        ("the school that {x} attended", "the institution where {x} studied"), GROUPS,
    ),
    Relation.TEAM: Template(
        ("Which team does {x} play for?", "What team does {x} play for?", "Who does {x} play for?"), Kind.GROUP,
        ("the team that {x} plays for", "the club for which {x} plays"), GROUPS,
    ),
    Relation.DIRECTOR: Template(
        ("Who is the director of {x}?", "Who directed {x}?", "Who was the director of {x}?",
         "{x} was directed by whom?"),
        Kind.PERSON,
        ("the director of {x}", "the person who directed {x}", "the filmmaker who directed {x}", "{x}'s director",
         "the director of {x}"),
        PEOPLE, FILM_OCCUPATIONS,
    ),
    Relation.WRITER: Template(
        ("Who wrote {x}?", "Who is the writer of {x}?", "Who was the screenwriter for {x}?"), Kind.PERSON,
        ("the writer of {x}", "the person who wrote {x}"), PEOPLE,
        FILM_OCCUPATIONS | MUSIC_OCCUPATIONS | WRITING_OCCUPATIONS,
    ),
    Relation.COMPOSER: Template(
        ("Who composed {x}?", "Who is the composer of {x}?", "Who was the composer of {x}?"), Kind.PERSON,
        ("the composer of {x}", "the person who composed {x}"), PEOPLE, MUSIC_OCCUPATIONS,
    ),
    Relation.PRODUCER: Template(
        ("Who produced {x}?", "Who is the producer of {x}?", "Who was the producer of {x}?"), Kind.PERSON,
        ("the producer of {x}", "the person who produced {x}"), PEOPLE, FILM_OCCUPATIONS | MUSIC_OCCUPATIONS,
    ),
    Relation.CREATOR: Template(
        ("Who created {x}?", "Who is the creator of {x}?"), Kind.PERSON,
        ("the creator of {x}", "the person who created {x}"), PEOPLE_AND_GROUPS, FILM_OCCUPATIONS | WRITING_OCCUPATIONS,
    ),
    Relation.AUTHOR: Template(
        ("Who is the author of {x}?", "Who wrote {x}?", "{x} was written by whom?"), Kind.PERSON,
        ("the author of {x}", "the writer of {x}", "the person who wrote {x}"), PEOPLE, WRITING_OCCUPATIONS,
    ),
    Relation.PERFORMER: Template(
        ("Who is the performer of {x}?", "Who performed {x}?", "Who recorded {x}?", "{x} is by which artist?"),
        Kind.PERSON, ("the performer of {x}", "the artist who recorded {x}", "{x}'s performer"),
        PEOPLE_AND_GROUPS, MUSIC_OCCUPATIONS,
    ),
    Relation.LABEL: Template(
        ("Which record label released {x}?", "What record label was {x} released on?", "What is the label of {x}?"),
        Kind.GROUP, ("the record label that released {x}", "the label of {x}"), GROUPS,
    ),
    Relation.ALBUM: Template(
        ("Which album is {x} from?", "What album does {x} appear on?", "{x} is from which album?"), Kind.WORK,
        ("the album that includes {x}", "the album that {x} is from"), frozenset({Kind.WORK}),
    ),
    Relation.PUBLISHER: Template(
        ("Who is the publisher of {x}?", "Who published {x}?", "Which company published {x}?"), Kind.GROUP,
        ("the publisher of {x}", "the company that published {x}"), GROUPS,
    ),
    Relation.RELEASED: Template(
        ("When was {x} released?", "When did {x} come out?", "What is the release date of {x}?"), Kind.DATE,
    ),
    Relation.GENRE: Template(
        ("What genre is {x}?", "What is the genre of {x}?", "What kind of {noun} is {x}?",
         "What genre does {x} belong to?"),
        Kind.GENRE,
    ),
    Relation.FOUNDED: Template(
        ("When was {x} founded?", "When was {x} established?", "When did {x} begin?"), Kind.DATE,
    ),
    Relation.FOUNDER: Template(
        ("Who founded {x}?", "Who is the founder of {x}?", "{x} was founded by whom?"), Kind.PERSON,
        ("the founder of {x}", "the person who founded {x}"), PEOPLE,
    ),
    Relation.BASED_IN: Template(
        ("Where is {x} based?", "Where is {x} from?", "Which place is {x} based in?"), Kind.PLACE,
        ("the place where {x} is based", "the place that {x} is from"), PLACES,
    ),
    Relation.OWNER: Template(
        ("Who owns {x}?", "Who is the owner of {x}?", "{x} is owned by whom?"), Kind.GROUP,
        ("the owner of {x}", "the company that owns {x}"), GROUPS,
    ),
    Relation.LOCATED_IN: Template(
        ("Where is {x} located?", "Where is {x}?", "In what place is {x} located?"), Kind.PLACE,
        ("the place where {x} is located", "the location of {x}"), PLACES,
    ),
    Relation.COUNTRY: Template(
        ("In which country is {x} located?", "Which country is {x} located in?", "What country is {x} in?",
         "In what country is {x}?"), Kind.PLACE,
        ("the country where {x} is located", "the country that {x} is located in"), PLACES,
    ),
    Relation.POPULATION: Template(
        ("What is the population of {x}?", "How many people live in {x}?", "What was the population of {x}?"),
        Kind.NUMBER,
    ),
}  # fmt: skip
# Past-tense verb for the agent of a relation.
AGENT_VERBS = {
    Relation.DIRECTOR: "directed",
    Relation.WRITER: "wrote",
    Relation.AUTHOR: "wrote",
    Relation.COMPOSER: "composed",
    Relation.PRODUCER: "produced",
    Relation.CREATOR: "created",
    Relation.PERFORMER: "recorded",
    Relation.FOUNDER: "founded",
}
# Names for the composition of two relations.
KINSHIP: dict[tuple[Relation, Relation], str] = {
    (Relation.FATHER, Relation.FATHER): "paternal grandfather",
    (Relation.FATHER, Relation.MOTHER): "paternal grandmother",
    (Relation.MOTHER, Relation.FATHER): "maternal grandfather",
    (Relation.MOTHER, Relation.MOTHER): "maternal grandmother",
    (Relation.HUSBAND, Relation.FATHER): "father-in-law",
    (Relation.WIFE, Relation.FATHER): "father-in-law",
    (Relation.HUSBAND, Relation.MOTHER): "mother-in-law",
    (Relation.WIFE, Relation.MOTHER): "mother-in-law",
}
YEAR_QUESTIONS = {
    Relation.BORN: ("When was {x} born?", "In what year was {x} born?", "What year was {x} born?"),
    Relation.DIED: ("When did {x} die?", "In what year did {x} die?", "What year did {x} die?"),
    Relation.RELEASED: ("When was {x} released?", "In what year was {x} released?", "What year did {x} come out?"),
    Relation.FOUNDED: ("When was {x} founded?", "In what year was {x} founded?", "What year was {x} established?"),
}
ORIGIN_QUESTIONS = ("Which country is {x} from?", "What country is {x} from?")
# Verbs for specific nouns: bands are formed, books are published.
WORD_REPLACEMENTS = {
    **dict.fromkeys(("band", "group", "duo", "trio", "quartet"), (("founded", "formed"), ("established", "formed"))),
    **dict.fromkeys(
        ("novel", "novella", "book", "magazine", "newspaper", "poem", "story", "journal"),
        (("released", "published"), ("release date", "publication date")),
    ),
}
# Comparison of two dates or numbers: templates for the smaller value, and for the larger one.
ORDER_TEMPLATES: dict[Relation, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Relation.BORN: (
        ("Who was born first, {a} or {b}?", "Who was born earlier, {a} or {b}?", "Who is older, {a} or {b}?",
         "Who was born first out of {a} and {b}?", "Which {noun} is older, {a} or {b}?",
         "Which {noun} was born first, {a} or {b}?", "Between {a} and {b}, who is older?", "Is {a} or {b} older?"),
        ("Who was born later, {a} or {b}?", "Who is younger, {a} or {b}?", "Which {noun} is younger, {a} or {b}?",
         "Which {noun} was born later, {a} or {b}?", "Between {a} and {b}, who is younger?"),
    ),
    Relation.DIED: (
        ("Who died first, {a} or {b}?", "Who died earlier, {a} or {b}?", "Which {noun} died first, {a} or {b}?"),
        ("Who died later, {a} or {b}?", "Which {noun} died later, {a} or {b}?"),
    ),
    Relation.RELEASED: (
        ("Which {noun} came out first, {a} or {b}?", "Which {noun} was released first, {a} or {b}?",
         "Which {noun} was released earlier, {a} or {b}?", "Was {a} or {b} released first?",
         "Which came out earlier, {a} or {b}?"),
        ("Which {noun} came out later, {a} or {b}?", "Which {noun} was released more recently, {a} or {b}?",
         "Which {noun} was released later, {a} or {b}?"),
    ),
    Relation.FOUNDED: (
        ("Which {noun} was founded first, {a} or {b}?", "Which {noun} was established earlier, {a} or {b}?",
         "Which was founded first, {a} or {b}?", "Which {noun} is older, {a} or {b}?"),
        ("Which {noun} was founded later, {a} or {b}?", "Which {noun} was founded more recently, {a} or {b}?"),
    ),
    Relation.POPULATION: (
        ("Which {noun} has fewer inhabitants, {a} or {b}?", "Which has a smaller population, {a} or {b}?"),
        ("Which {noun} has more inhabitants, {a} or {b}?", "Which has a larger population, {a} or {b}?",
         "Does {a} or {b} have more inhabitants?"),
    ),
}  # fmt: skip
LIVED_LONGER = ("Who lived longer, {a} or {b}?", "Which {noun} lived longer, {a} or {b}?")
LIVED_SHORTER = ("Who died at a younger age, {a} or {b}?",)
SAME_NATIONALITY = (
    "Are {a} and {b} of the same nationality?", "Do {a} and {b} have the same nationality?",
    "Were {a} and {b} of the same nationality?", "Did {a} and {b} have the same nationality?",
    "Are both {a} and {b} from the same country?", "Are {a} and {b} from the same country?",
    "Do both {a} and {b} share the same nationality?", "Did {a} and {b} share the same nationality?",
)  # fmt: skip
BOTH_OF_NATIONALITY = (
    "Are {a} and {b} both {value}?",
    "Are both {a} and {b} {value}?",
    "Were {a} and {b} both {value}?",
)
SAME_COUNTRY_OF_ORIGIN = (
    "Are {a} and {b} from the same country?", "Are both {a} and {b} from the same country?",
    "Are the {noun}s {a} and {b} from the same country?", "Do both {noun}s {a} and {b} come from the same country?",
)  # fmt: skip
BOTH_FROM_COUNTRY = ("Are {a} and {b} both {value} {noun}s?", "Are both {noun}s, {a} and {b}, {value}?")
SAME_COUNTRY = (
    "Are {a} and {b} located in the same country?", "Are both {a} and {b} located in the same country?",
    "Are {a} and {b} both located in the same country?", "Are {a} and {b} in the same country?",
)  # fmt: skip
BOTH_HAVE_OCCUPATION = (
    "Are {a} and {b} both {value}s?",
    "Were both {a} and {b} {value}s?",
    "Are both {a} and {b} {value}s?",
)
BOTH_OF_KIND = ("Are {a} and {b} both {value}s?", "Are both {a} and {b} {value}s?")
SHARED_NATIONALITY = (
    "What nationality do {a} and {b} share?", "What is the nationality of both {a} and {b}?",
    "{a} and {b} are of which nationality?",
)  # fmt: skip
SHARED_OCCUPATION = (
    "What occupation do {a} and {b} share?", "What profession do {a} and {b} have in common?",
    "{a} and {b} both have which occupation?", "What do {a} and {b} both do for a living?",
)  # fmt: skip
WHICH_HAS_NATIONALITY = ("Who is {value}, {a} or {b}?", "Which {noun} is {value}, {a} or {b}?")
WHICH_IS_FROM_COUNTRY = ("Which {noun} is {value}, {a} or {b}?", "Is {a} or {b} a {value} {noun}?")
SAME_MAKER = {
    Relation.DIRECTOR: (
        "Do the {noun}s {a} and {b} have the same director?", "Were {a} and {b} directed by the same person?",
        "Are {a} and {b} directed by the same person?",
    ),
    Relation.PERFORMER: (
        "Are {a} and {b} by the same performer?", "Do the {noun}s {a} and {b} have the same performer?",
    ),
    Relation.AUTHOR: ("Do {a} and {b} have the same author?", "Were {a} and {b} written by the same person?"),
}  # fmt: skip
# Comparison of the makers of two works; {maker} is their role.
MAKER_ROLES = {Relation.DIRECTOR: "director", Relation.PERFORMER: "performer", Relation.AUTHOR: "author"}
MAKER_ORDER_TEMPLATES: dict[Relation, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Relation.BORN: (
        ("Which {noun} has the {maker} who was born first, {a} or {b}?",
         "Which {noun} has the {maker} who was born earlier, {a} or {b}?",
         "Which {noun} has the {maker} who is older, {a} or {b}?", "Which {noun} whose {maker} is older, {a} or {b}?"),
        ("Which {noun} has the {maker} born later, {a} or {b}?",
         "Which {noun} has the {maker} who was born later, {a} or {b}?",
         "Which {noun} has the {maker} who is younger, {a} or {b}?",
         "Which {noun} whose {maker} is younger, {a} or {b}?"),
    ),
    Relation.DIED: (
        ("Which {noun} has the {maker} who died first, {a} or {b}?",
         "Which {noun} has the {maker} who died earlier, {a} or {b}?"),
        ("Which {noun} has the {maker} who died later, {a} or {b}?",),
    ),
}  # fmt: skip
SAME_MAKER_NATIONALITY = (
    "Do the {maker}s of the {noun}s {a} and {b} have the same nationality?",
    "Do {maker} of {noun} {a} and {maker} of {noun} {b} have the same nationality?",
    "Do both {noun}s, {a} and {b}, have the {maker}s that share the same nationality?",
    "Are the {maker}s of both {noun}s {a} and {b} from the same country?",
    "Are {maker} of {noun} {a} and {maker} of {noun} {b} from the same country?",
)


def question_templates(relation: Relation, value: str, noun: str, kind: Kind | None) -> tuple[str, ...]:
    """Return the question templates for a value of a relation, worded for the noun and kind of the topic."""
    if relation is Relation.NATIONALITY and kind is not Kind.PERSON:
        return ORIGIN_QUESTIONS
    use_year = relation in YEAR_QUESTIONS and value.isdigit()
    texts = YEAR_QUESTIONS[relation] if use_year else TEMPLATES[relation].questions
    if relation in (Relation.RELEASED, Relation.FOUNDED):
        for word, replacement in WORD_REPLACEMENTS.get(noun, ()):
            texts = tuple(dict.fromkeys(text.replace(word, replacement) for text in texts))
    return tuple(text.replace("{noun}", noun) for text in texts)
