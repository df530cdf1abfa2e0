"""Facts stated about the topic of a passage: relation extraction by patterns for people, works, places and groups."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sleuth.synthesis.cloze.english import (
    AGENT_SUFFIX,
    COUNTRIES,
    COUNTRIES_BY_DEMONYM,
    DATE,
    DEMONYM,
    FULL_DATE,
    MONTH,
    NON_OCCUPATIONS,
    PERSON_NOUNS,
    Kind,
    date_aliases,
    nationality_of,
)
from sleuth.synthesis.cloze.lexicon import Lexicon, strip_parentheses
from sleuth.synthesis.cloze.relations import Fact, Facts, Relation
from sleuth.synthesis.cloze.spans import AFTER_NAME, DEMONYM_SUFFIX, LIST_CONTINUES, NAME_PARTICLE, WORD
from sleuth.synthesis.cloze.topic import Topic

Found = Iterator[tuple[Relation, Fact]]
NAME = rf"{WORD}(?: (?:{NAME_PARTICLE} )?{WORD})*"
PLACE_PARTICLE = r"(?:of|de la|de|la|le|del|upon|sur|am|di|do|da|dos|el|al)"
# A hyphen after a letter belongs to WORD; allowing it here too would make matching exponential.
PLACE_NAME = rf"{WORD}(?:(?: |(?<=\.)-)(?:{PLACE_PARTICLE} )?{WORD})*"
PLACE = rf"{PLACE_NAME}(?:, {PLACE_NAME}){{0,3}}"
LAZY_PLACE = PLACE.replace("{0,3}", "{0,3}?")
MONTH_NAME = re.compile(rf"\b{MONTH}\b")
NOT_NAMES = frozenset({"Dr", "Mr", "Mrs", "St", "Jr", "Sr", "Hong", "The", "A", "An", "He", "She", "It", "They"})
NAME_LENGTH = re.compile(r"^[^\d]{2,60}$")
LIFE_DATES = re.compile(r"\(([^()]{4,160})\)")
DATE_OR_YEAR = re.compile(rf"{FULL_DATE}|\b\d{{4}}\b")
UNCERTAIN_DATE = re.compile(
    r"\b(?:c|ca|fl)\.|\b(?:circa|before|after|about|baptised|baptized|or|active|reigned)\b|\d/\d|\?"
)
DATE_RANGE = re.compile(r"(?<!\s)(?:(?<=\d{4})\s*+-|\s*+[–—]|\s++-\s)\s*+")
BORN_IN = re.compile(rf"\b(?:born|b\.)\b[^;]*?(?:in|at) (?P<place>{PLACE})")
DATE_WITH_PLACE = re.compile(rf"^(?:(?P<before>{PLACE}),? {DATE}|{DATE},? (?:in )?(?P<behind>{PLACE}))$")
WAS_BORN = re.compile(
    rf"^ was born(?: as)?(?: [A-Z][\w. \"-]+?)?(?: on {FULL_DATE},?| in \d{{4}},?)? (?:in|at)"
    rf"(?: the (?:city|town|village|parish|hamlet|suburb) of)? (?P<place>{PLACE})"
)
DIED_IN = re.compile(
    rf"^ died(?: on {FULL_DATE},?| in \d{{4}},?)?(?: of [a-z ]+)? (?:in|at)"
    rf"(?: the (?:city|town|village) of)? (?P<place>{PLACE})"
)
ROLE = rf"(?:the )?(?:{DEMONYM} )?(?:(?!and |his |her )[a-z-]+ ){{0,4}}?"
CHILD = re.compile(
    rf"\b(?:the|a|an|and)? ?(?:(?:eldest|oldest|second|third|fourth|fifth|youngest|younger|elder|only|first|surviving|"
    rf"illegitimate|legitimate) ){{0,6}}(?:son|daughter) of {ROLE}(?P<father>{NAME})"
    rf"(?:,? and (?:(?:his|her) )?(?:first |second |third )?(?P<wife>wife,? )?{ROLE}(?P<mother>{NAME}))?"
)
MARRIED = re.compile(rf"^ (?:is |was )?married (?:to )?{ROLE}(?P<name>{NAME})")
SPOUSE = re.compile(rf"\b(?P<role>wife|husband|widow|consort) of {ROLE}(?P<name>{NAME})")
SIBLING = re.compile(rf"\b(?P<role>brother|sister) of {ROLE}(?P<name>{NAME})")
OWN_RELATIVE = re.compile(
    rf"\b(?:his|her) (?P<role>father|mother|wife|husband|brother|sister),? (?P<name>{NAME})(?=[,.]| (?!and )[a-z]|$)"
)
PARENTS_AND_SPOUSES = {each.value: each for each in (Relation.FATHER, Relation.MOTHER, Relation.WIFE, Relation.HUSBAND)}
SCHOOL = re.compile(
    rf"^ (?:(?:graduated|(?:earned|received|obtained|holds) [^,.]{{0,40}}) from|attended|"
    rf"studied (?:[a-z ]{{1,30}} )?at|was educated at) (?:the )?(?P<name>{NAME})"
)
SCHOOL_NOUN = re.compile(
    r"\b(?:University|College|School|Academy|Institute|Conservatory|Universität|Lyceum|Seminary)\b"
)
TEAM = re.compile(rf"\bplays (?:[a-z ]{{1,40}} )?for (?:the )?(?:[a-z]++ ){{0,12}}(?P<name>{NAME})")
OCCUPATIONS_END = re.compile(
    r"\b(?:who|whose|known|best|born|from|of|in|at|for|with|that|where|most|currently|and a member|is|was|during|"
    r"on|by)\b"
)
OCCUPATION = re.compile(
    r"(?:film |music |art |television |stage |opera |theatre |football |basketball |baseball |tennis |chess )?"
    r"(?<![a-z-])[a-z-]++$"
)
NOT_OCCUPATIONS = NON_OCCUPATIONS | {
    "saint",
    "peer",
    "king",
    "queen",
    "prince",
    "princess",
    "count",
    "countess",
    "duke",
    "duchess",
}
MALE, FEMALE = re.compile(r"\b(?:he|his|him|actor|king)\b", re.I), re.compile(r"\b(?:she|her|actress|queen)\b", re.I)
BY_MAKER = (
    rf"by (?:the )?(?:{DEMONYM}(?:[- ]{DEMONYM})? )?(?:(?!and |starring |the )[a-z/-]+(?: and)? ){{0,5}}?"
    rf"(?P<name>(?:The )?{NAME})"
)
# More participles with the same agent: written, directed and produced by.
COORDINATED_VERBS = r"(?:(?:,|,? and) (?:co-)?[a-z]+ed)*(?:(?:,|,? and) (?:written|edited))?"
MAKER_PATTERNS = {
    Relation.DIRECTOR: re.compile(rf"\b(?:directed|co-directed){COORDINATED_VERBS} {BY_MAKER}"),
    Relation.WRITER: re.compile(rf"\bwritten{COORDINATED_VERBS} {BY_MAKER}"),
    Relation.COMPOSER: re.compile(rf"\bcomposed{COORDINATED_VERBS} {BY_MAKER}"),
    Relation.PRODUCER: re.compile(rf"\bproduced{COORDINATED_VERBS} {BY_MAKER}"),
    Relation.CREATOR: re.compile(rf"\bcreated{COORDINATED_VERBS} {BY_MAKER}"),
    Relation.PERFORMER: re.compile(rf"\b(?:recorded|performed|sung){COORDINATED_VERBS} {BY_MAKER}"),
    Relation.PUBLISHER: re.compile(rf"\bpublished {BY_MAKER}"),
}
MUSIC_NOUNS = frozenset({"song", "single", "album", "EP", "mixtape"})
BOOK_NOUNS = frozenset({"novel", "novella", "book", "poem", "story", "play", "memoir", "autobiography"})
NOUN_BY = {noun: re.compile(rf"\b{noun} (?:written )?{BY_MAKER}") for noun in MUSIC_NOUNS | BOOK_NOUNS}
OTHER_WORK = re.compile(
    r"\b(?:based on|remake|sequel|adapt\w+|version|prequel|parody|cover of|inspired|spin-off|soundtrack|novel|play|"
    r"book|series of|which|whose|that|from the film|episode|score|songs?|music|lyrics|screenplay|script|edited)\b"
)
RELEASE_YEAR = re.compile(r"^(?:an? |the )?(?:upcoming |lost )?(?P<when>1[89]\d{2}|20[0-2]\d) ")
RELEASED = re.compile(
    rf"\b(?:released|published|premiered)(?: [a-z]+ly)?(?: by [^,.]{{3,40}}?| through [^,.]{{3,40}}?| worldwide)?,? "
    rf"(?:on (?P<day>{FULL_DATE})|in (?:\w+ )?(?P<when>1[5-9]\d{{2}}|20[0-2]\d)(?![\w–-]))"
)
LABEL = re.compile(
    rf"\b(?:released|issued)\b[^.]{{0,60}}? (?:by|on|through|via|under) (?:the )?(?:label )?"
    rf"(?P<name>{NAME.replace('*', '{0,3}')} (?:Records|Recordings|Music|Entertainment))\b"
)
ALBUM = re.compile(
    r"\b(?:from|for|off|on) (?:the|his|her|their|its) (?:[\w’'-]+ ){0,5}?(?:album|EP|mixtape),? "
    r'(?:entitled |titled |called )?"(?P<name>[^"]{2,50}?),?"'
)
GENRES = frozenset(
    """
    comedy drama horror thriller western action adventure documentary fantasy crime romance romantic musical war
    mystery science fiction rock pop folk jazz blues country metal punk electronic biographical psychological
    historical superhero sports noir soul reggae
    """.split()  # noqa: SIM905 - read as lines
)
LOCATION = re.compile(
    rf"^(?:an? |the |one of the )?[^,]{{2,70}}?(?:,? (?:located|situated|based|headquartered|that is))? in "
    rf"(?:the )?(?:(?:north|south|east|west|central|rural|\w+ern|northern|far|upper|lower)[a-z-]* )?"
    rf"(?:(?:city|town|state|province|county|U\.S\. state|village|district|municipality|region|borough) of )?"
    rf"(?P<place>{PLACE}(?:, in [a-z-]+ {PLACE})?)"
)
ORIGIN = re.compile(rf"\b(?:from|based in|formed in|headquartered in|located in) (?P<place>{PLACE})")
FOUNDATION = re.compile(
    rf"\b(?:founded|formed|established|created|started|incorporated|opened)(?: in (?:the )?{PLACE})?"
    rf"(?: on (?P<day>{FULL_DATE})| in (?:early |late |\w+ )?(?P<when>1[0-9]\d{{2}}|20[0-2]\d)(?![\w–-]))"
)
FOUNDED_PREDICATE = re.compile(
    r"^,? (?:was|were|is) (?:first |originally )?(?:founded|formed|established|incorporated|owned)"
)
FOUNDER = re.compile(
    rf"\b(?:founded|formed|established)(?: in [^,.]{{3,40}}?)? by (?:the )?(?:{DEMONYM} )?"
    rf"(?:(?!and |the )[a-z/-]+ ){{0,4}}?(?P<name>{NAME})"
)
OWNER = re.compile(rf"\b(?:owned|operated) by (?:the )?(?P<name>{NAME})")
POPULATION_OF = (
    r"population (?:of|was|is)(?: about| approximately| estimated at| around)? "
    r"(\d{1,3}(?:,\d{3})+|\d{2,})(?!\d|[.,]\d| million)"
)
POPULATION = re.compile(rf"\b{POPULATION_OF}")
OWN_POPULATION = re.compile(rf"\b(?:[Ii]ts|The|the total) {POPULATION_OF}")
EXPLICIT_LOCATION = re.compile(r"\b(?:located|situated|based|headquartered) in\b")


@dataclass(frozen=True, slots=True)
class Subject:
    """A topic with its facts; `occupations` are single nouns."""

    topic: Topic
    facts: Facts
    occupations: tuple[str, ...] = ()


def extract_subject(topic: Topic, lexicon: Lexicon) -> Subject:
    """Extract the facts of a topic with the patterns for its kind; the first fact of a relation wins."""
    occupations: tuple[str, ...] = ()
    match topic.kind:
        case Kind.PERSON:
            found = [*_life_dates(topic), *_nationality_and_occupation(topic)]
            found += [*_biography(topic), *_family(topic, lexicon)]
            nouns = re.findall(r"[a-z-]+", _occupation_list(topic))
            occupations = tuple(dict.fromkeys(noun for noun in nouns if _is_occupation(noun)))
        case Kind.WORK:
            found = [*_work_definition(topic), *_work_statements(topic)]
        case _ if topic.definition:
            found = [*_place_definition(topic), *_place_statements(topic), *_population(topic)]
        case _:
            found = []
    facts: Facts = {}
    for relation, fact in found:
        facts.setdefault(relation, fact)
    if topic.kind is Kind.WORK and Relation.AUTHOR in facts:
        facts.pop(Relation.WRITER, None)
    return Subject(topic, facts, occupations)


def _single_name(text: str, found: re.Match[str] | None, group: str = "name") -> str | None:
    """Return the matched name; None if it is one of several names or part of a longer phrase."""
    if found is None:
        return None
    name, after = found[group].partition(" of the ")[0].rstrip(","), text[found.end(group) :]
    if (
        LIST_CONTINUES.match(after)
        or not AFTER_NAME.match(after)
        or DEMONYM_SUFFIX.match(name.partition(" ")[0])
        or name in NOT_NAMES
        or not NAME_LENGTH.search(name)
    ):
        return None
    return name


def _place(text: str, after: str = "") -> Fact | None:
    """Parse a place, with the part before the comma as an alias; None if the text is not a place by itself."""
    if MONTH_NAME.search(text) or not NAME_LENGTH.search(text) or DEMONYM_SUFFIX.match(text):
        return None
    short = text.partition(",")[0]
    if not AFTER_NAME.match(after) or short in NOT_NAMES:
        return None
    return Fact(text, (short,) if short != text else ())


def _date_fact(date: str) -> Fact:
    return Fact(date, date_aliases(date))


def _is_female(text: str) -> bool | None:
    """Guess the gender from pronouns; None if they are balanced or absent."""
    female, male = len(FEMALE.findall(text)), len(MALE.findall(text))
    return None if female == male or min(female, male) * 2 > max(female, male) else female > male


def _is_occupation(noun: str) -> bool:
    return (noun in PERSON_NOUNS or bool(AGENT_SUFFIX.search(noun))) and noun not in NOT_OCCUPATIONS


def _occupation_list(topic: Topic) -> str:
    """Return the occupations in the opening sentence: American film director, producer and screenwriter."""
    opening = strip_parentheses(topic.opening)
    found = re.search(r"\b(?:is|was) (?:an?|the) ", opening)
    if found is None or found.start() > 160:
        return ""
    rest = opening[found.end() :]
    end = OCCUPATIONS_END.search(rest)
    return rest[: end.start()] if end else rest


def _life_dates(topic: Topic) -> Found:
    """Extract birth and death from the parentheses after a name."""
    found = LIFE_DATES.search(topic.opening[:300])
    if found is None or re.search(r"\b(?:is|was)\b", topic.opening[: found.start()]):
        return
    inside = found[1].rpartition(";")[2].strip()
    if UNCERTAIN_DATE.search(inside):
        return
    parts = DATE_RANGE.split(inside)
    if "born" in inside or " b. " in f" {inside}":
        parts = parts[:1] if len(parts) != 2 else parts
    elif len(parts) != 2:
        return
    relations = ((Relation.BORN, Relation.BIRTHPLACE), (Relation.DIED, Relation.DEATHPLACE))
    for part, (date, location) in zip(parts, relations, strict=False):
        yield from _date_and_place(part.strip(" ,"), date, location)


def _date_and_place(part: str, date: Relation, location: Relation) -> Found:
    dates = DATE_OR_YEAR.findall(part)
    if len(dates) == 1:
        yield date, _date_fact(dates[0])
    if "," not in part and " in " not in part:
        return
    found = BORN_IN.search(part)
    if found is None and not re.match(r"born|b\.|né", part):  # "born" is followed by a birth name
        found = DATE_WITH_PLACE.match(re.sub(r"^(?:died|d\.)\s*(?:on )?", "", part))
    name = next((value for value in found.groupdict().values() if value), None) if found else None
    fact = _place(name) if name else None
    if fact:
        yield location, fact


def _nationality_and_occupation(topic: Topic) -> Found:
    phrase = _occupation_list(topic)
    demonym = nationality_of(phrase)
    if demonym and not re.search(rf"{DEMONYM}[- ]born", topic.opening):
        yield Relation.NATIONALITY, Fact(demonym, COUNTRIES_BY_DEMONYM[demonym])
    first = phrase.split(",")[0].split(" and ")[0].strip(" .")
    found = OCCUPATION.search(first)
    if found and _is_occupation(first.split()[-1]):
        noun = found[0].split()[-1]
        yield Relation.OCCUPATION, Fact(found[0], (noun,) if noun != found[0] else ())


def _biography(topic: Topic) -> Found:
    for text in topic.predicates():
        for pattern, relation in ((WAS_BORN, Relation.BIRTHPLACE), (DIED_IN, Relation.DEATHPLACE)):
            found = pattern.search(text)
            fact = _place(found["place"], text[found.end("place") :]) if found else None
            if fact:
                yield relation, fact
        when = re.match(rf"^ (?P<event>was born|died) on (?P<date>{FULL_DATE})", text)
        if when:
            yield (Relation.BORN if when["event"] == "was born" else Relation.DIED), _date_fact(when["date"])
        school = _single_name(text, SCHOOL.search(text))
        if school and SCHOOL_NOUN.search(school):
            yield Relation.SCHOOL, Fact(school)
        team = _single_name(text, TEAM.search(text))
        if team:
            yield Relation.TEAM, Fact(team)
    # Born in Spokane, Washington, McGavin claimed to ...
    text = topic.passage.text
    start = text.find("Born in ")
    if 0 <= start < 900:
        names = "|".join(("he", "she", re.escape(topic.title), re.escape(topic.title.split()[-1])))
        found = re.match(rf"Born in (?P<place>{LAZY_PLACE}),? (?:{names})\b", text[start : start + 200])
        fact = _place(found["place"]) if found else None
        if fact:
            yield Relation.BIRTHPLACE, fact


def _family(topic: Topic, lexicon: Lexicon) -> Found:
    married_once = topic.passage.text.count("married") <= 1
    female = _is_female(topic.passage.text)

    def is_full_name(name: str | None) -> bool:
        return name is not None and " " in name and lexicon.is_person(name)

    for text in topic.predicates():
        is_copular = re.match(r"^ (?:is|was) ", text)
        child = CHILD.search(text[:200]) if is_copular else None
        if child:
            yield from _parents(text, child, lexicon)
        married, spouse = MARRIED.search(text[:160]), SPOUSE.search(text[:160])
        name = _single_name(text, married)
        if name and is_full_name(name) and married_once and female is not None:
            yield (Relation.HUSBAND if female else Relation.WIFE), Fact(name)
        name = _single_name(text, spouse)
        if spouse and name and is_full_name(name) and married_once:
            yield (Relation.WIFE if spouse["role"] == "husband" else Relation.HUSBAND), Fact(name)
        own = OWN_RELATIVE.search(text)
        if own and is_full_name(own["name"]) and not re.search(r"\b(?:who|whose)\b", text[: own.start()]):
            yield PARENTS_AND_SPOUSES.get(own["role"], Relation.SIBLING), Fact(own["name"])
        name = _single_name(text, SIBLING.search(text[:160])) if is_copular else None
        if name and is_full_name(name):
            yield Relation.SIBLING, Fact(name)


def _parents(text: str, child: re.Match[str], lexicon: Lexicon) -> Found:
    """Extract father and mother: of two names the first is the father unless female; one name needs a known gender."""
    first, second = child["father"], child["mother"]
    female = lexicon.is_female_name(first)
    if second and (child["wife"] or lexicon.is_female_name(second)) and female is not True:
        yield Relation.FATHER, Fact(first)
        if " " in second:
            yield Relation.MOTHER, Fact(second)
    elif female is not None and " " in first and not second and _single_name(text, child, "father"):
        yield (Relation.MOTHER if female else Relation.FATHER), Fact(first)


def _definition_text(topic: Topic) -> str | None:
    """Return the text after the copula of the opening sentence, if it defines the topic."""
    opening = strip_parentheses(topic.opening)
    found = re.search(r"\b(?:is|was|are|were) (?=(?:an?|the|one of) )", opening)
    return opening[found.end() :] if found and topic.definition else None


def _work_definition(topic: Topic) -> Found:
    text, definition = _definition_text(topic), topic.definition
    if text is None or definition is None:
        return
    year = RELEASE_YEAR.match(text)
    if year:
        yield Relation.RELEASED, Fact(year["when"])
    demonym = nationality_of(definition.phrase)
    if demonym:
        yield Relation.NATIONALITY, Fact(demonym, COUNTRIES_BY_DEMONYM[demonym])
    genre = " ".join(word for word in definition.phrase.split()[:-1] if word in GENRES)
    if genre and genre in definition.phrase:
        yield Relation.GENRE, Fact(genre, (f"{genre} {definition.noun}",))
    noun = definition.noun
    patterns = list(MAKER_PATTERNS.items())
    if noun in NOUN_BY:
        patterns.append((Relation.PERFORMER if noun in MUSIC_NOUNS else Relation.AUTHOR, NOUN_BY[noun]))
    for relation, pattern in patterns:
        found = pattern.search(text)
        is_other_work = found and OTHER_WORK.search(text[: found.start()].partition(noun)[2])
        name = _single_name(text, found) if not is_other_work else None
        if name:
            yield relation, Fact(name)
    yield from _release(text, text.find(noun))


def _work_statements(topic: Topic) -> Found:
    for text in topic.predicates():
        if re.match(r"^ (?:was|is|were) (?!an? |the |based)", text):
            for relation, pattern in MAKER_PATTERNS.items():
                found = pattern.search(text)
                name = _single_name(text, found) if found and not OTHER_WORK.search(text[: found.start()]) else None
                if name:
                    yield relation, Fact(name)
            if re.match(r"^ (?:was|were) (?:first |originally |also )?(?:released|published|premiered)", text):
                yield from _release(text)
        album = ALBUM.search(text) if topic.noun in ("song", "single") else None
        if album:
            yield Relation.ALBUM, Fact(album["name"])


def _release(text: str, begin: int = 0) -> Found:
    """Extract release date and label; the text before `begin` defines the work."""
    found = RELEASED.search(text)
    if found and not OTHER_WORK.search(text, begin + 1, found.start()):
        yield Relation.RELEASED, _date_fact(found["day"] or found["when"])
    label = LABEL.search(text)
    if label:
        yield Relation.LABEL, Fact(label["name"])


def _place_definition(topic: Topic) -> Found:
    text, definition = _definition_text(topic), topic.definition
    if text is None or definition is None:
        return
    demonym = nationality_of(definition.phrase)
    if demonym and topic.kind is Kind.GROUP:
        yield Relation.NATIONALITY, Fact(demonym, COUNTRIES_BY_DEMONYM[demonym])
    found = (LOCATION if topic.kind is Kind.PLACE or topic.kind is None else ORIGIN).search(text)
    # Things of unknown kind have a location only if it is explicit: a game in Japan is not located there.
    has_location = found and (topic.kind is not None or EXPLICIT_LOCATION.search(found[0]))
    if found and has_location and AFTER_NAME.match(text[found.end("place") :]):
        location = found["place"]
        fact = _place(re.sub(r", in [a-z-]+ ", ", ", location))
        parts = [part for part in re.split(r", (?:in [a-z-]+ )?", location) if part]
        if fact and fact.value == location and topic.title.partition(",")[0] not in parts:
            yield (Relation.BASED_IN if topic.kind is Kind.GROUP else Relation.LOCATED_IN), fact
        if parts[-1] in COUNTRIES:
            yield Relation.COUNTRY, Fact(parts[-1])
    yield from _foundation(text)


def _foundation(text: str) -> Found:
    found = FOUNDATION.search(text)
    if found:
        yield Relation.FOUNDED, _date_fact(found["day"] or found["when"])
    for pattern, relation in ((FOUNDER, Relation.FOUNDER), (OWNER, Relation.OWNER)):
        name = _single_name(text, pattern.search(text))
        if name and " " in name:
            yield relation, Fact(name)


def _place_statements(topic: Topic) -> Found:
    for text in topic.predicates():
        if FOUNDED_PREDICATE.match(text):
            yield from _foundation(text)
        found = re.match(rf"^ (?:is|are) (?:headquartered|based|located|situated) in (?P<place>{PLACE})", text)
        fact = _place(found["place"], text[found.end() :]) if found else None
        if fact:
            yield (Relation.BASED_IN if topic.kind is Kind.GROUP else Relation.LOCATED_IN), fact


def _population(topic: Topic) -> Found:
    if topic.kind is not Kind.PLACE:
        return
    own = OWN_POPULATION.search(topic.passage.text)
    found = own or next(filter(None, map(POPULATION.search, topic.predicates())), None)
    if found:
        yield Relation.POPULATION, Fact(found[1], (found[1].replace(",", ""),))
