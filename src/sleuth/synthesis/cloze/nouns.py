"""Nouns that say what a thing is: its kind, and with it the word that asks for it."""

import re
from enum import StrEnum


class Kind(StrEnum):
    """What an answer is, as told by its form and its surroundings."""

    PERSON = "person"
    PLACE = "place"
    GROUP = "group"
    WORK = "work"
    THING = "thing"
    YEAR = "year"
    DATE = "date"
    NUMBER = "number"
    AMOUNT = "amount"
    OCCUPATION = "occupation"
    NATIONALITY = "nationality"
    GENRE = "genre"


PEOPLE = frozenset(
    """
    actor actress author writer novelist poet playwright screenwriter director filmmaker producer singer songwriter
    rapper musician guitarist drummer bassist pianist violinist composer conductor dancer choreographer comedian
    model artist painter sculptor photographer architect designer journalist editor publisher broadcaster presenter
    host politician diplomat lawyer judge jurist attorney statesman activist economist historian philosopher
    theologian scientist physicist chemist biologist botanist zoologist astronomer mathematician statistician
    engineer inventor physician surgeon nurse psychologist psychiatrist psychoanalyst sociologist anthropologist
    linguist geologist geographer explorer teacher professor academic educator scholar businessman businesswoman
    entrepreneur banker industrialist merchant philanthropist soldier officer general admiral colonel captain pilot
    aviator astronaut cosmonaut footballer cricketer golfer boxer wrestler swimmer skater skier cyclist rower
    sprinter athlete player goalkeeper striker midfielder defender forward quarterback linebacker pitcher catcher
    outfielder coach manager referee jockey driver racer sailor gymnast fencer bishop archbishop cardinal priest
    pastor missionary monk nun rabbi saint king queen prince princess emperor empress duke duchess earl count
    countess baron baronet nobleman noblewoman peer knight president premier chancellor minister governor senator
    mayor congressman congresswoman ambassador animator cartoonist illustrator cinematographer critic essayist
    biographer translator librettist lyricist organist cellist trumpeter saxophonist vocalist frontman bandleader
    hurler jurist baritone tenor soprano man woman member leader founder wife husband son daughter brother sister
    father mother
    """.split()  # noqa: SIM905 - read as lines
)
FAMILY = frozenset(
    {"wife", "husband", "son", "daughter", "brother", "sister", "father", "mother"}
    | {"member", "man", "woman", "leader", "founder"}
)
AGENTS = re.compile(r"(?:player|worker|maker|writer|ologist|ographer|ician|keeper|holder|skater|ballplayer|person)$")
WORKS = frozenset(
    """
    film movie documentary drama comedy thriller album song single novel novella book series sitcom play musical
    opera ballet symphony poem story magazine newspaper journal episode show soundtrack painting comic manga anime
    telenovela EP mixtape miniseries sculpture cantata sonata concerto
    """.split()  # noqa: SIM905
)
PLACES = frozenset(
    """
    city town village county district river lake mountain island islands country municipality region state province
    neighborhood neighbourhood commune township suburb settlement hamlet parish borough capital peninsula sea bay
    valley desert park street road highway airport station square bridge castle church cathedral stadium territory
    republic community
    """.split()  # noqa: SIM905
)
GROUPS = frozenset(
    """
    band company university college school club team organization organisation party label group duo trio quartet
    orchestra corporation agency institute association airline manufacturer network channel league conference
    government army regiment institution museum bank brand studio publisher
    """.split()  # noqa: SIM905
)
# The last word of a name often says what it names: Orange County, Island Records, the University of Kent.
LAST_WORDS: dict[str, tuple[Kind, str]] = {
    **{each.title(): (Kind.PLACE, each) for each in PLACES - {"state", "capital", "community", "station", "islands"}},
    **dict.fromkeys(("University", "Universität", "Université"), (Kind.GROUP, "university")),
    **dict.fromkeys(("Records", "Recordings"), (Kind.GROUP, "record label")),
    **dict.fromkeys(("Inc", "Inc.", "Ltd", "Ltd.", "Corporation", "Company"), (Kind.GROUP, "company")),
    **dict.fromkeys(("Entertainment", "Pictures"), (Kind.GROUP, "company")),
    **dict.fromkeys(("School", "Academy"), (Kind.GROUP, "school")),
    **dict.fromkeys(("Award", "Awards", "Prize", "Medal"), (Kind.THING, "award")),
    "War": (Kind.THING, "war"),
    **{each.title(): (Kind.GROUP, each) for each in ("college", "league", "party", "club", "museum", "institute")},
    **{each.title(): (Kind.GROUP, each) for each in ("orchestra", "conference")},
    **{each.title(): (Kind.THING, each) for each in ("festival", "championship", "championships", "cup", "tournament")},
    **{each.title(): (Kind.THING, each) for each in ("language", "treaty", "battle")},
}
FIRST_WORDS: dict[str, tuple[Kind, str]] = {
    "University": (Kind.GROUP, "university"),
    "Lake": (Kind.PLACE, "lake"),
    "Mount": (Kind.PLACE, "mountain"),
    "Battle": (Kind.THING, "battle"),
    "Treaty": (Kind.THING, "treaty"),
}


def kind_of(noun: str) -> Kind | None:
    """The kind of thing that a noun names; None where it says nothing."""
    if noun in PEOPLE or AGENTS.search(noun):
        return Kind.PERSON
    table = ((WORKS, Kind.WORK), (PLACES, Kind.PLACE), (GROUPS, Kind.GROUP))
    return next((kind for nouns, kind in table if noun in nouns), None)


def of_name(name: str) -> tuple[Kind, str] | None:
    """The kind and noun that a name's own words tell."""
    words = name.split()
    if len(words) < 2:
        return None
    whole = name.partition(" of ")[0].split()
    return LAST_WORDS.get(whole[-1]) or FIRST_WORDS.get(words[0])
