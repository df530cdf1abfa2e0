"""What is said of places, bands, schools and companies: where they are, since when, and how large."""

import re
from collections.abc import Iterator

from sleuth.synthesis.cloze import dates
from sleuth.synthesis.cloze.dates import DAY
from sleuth.synthesis.cloze.facts import NAME, PLACE, Fact, Facts, Relation, one_name, place, predicates
from sleuth.synthesis.cloze.lexicon import unbracketed
from sleuth.synthesis.cloze.nations import ADJECTIVE, COUNTRIES, NATIONS, nation
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.spans import BEHIND
from sleuth.synthesis.cloze.topic import Topic

LIES = re.compile(
    rf"^(?:an? |the |one of the )?[^,]{{2,70}}?(?:,? (?:located|situated|based|headquartered|that is))? in "
    rf"(?:the )?(?:(?:north|south|east|west|central|rural|\w+ern|northern|far|upper|lower)[a-z-]* )?"
    rf"(?:(?:city|town|state|province|county|U\.S\. state|village|district|municipality|region|borough) of )?"
    rf"(?P<place>{PLACE}(?:, in [a-z-]+ {PLACE})?)"
)
FROM = re.compile(rf"\b(?:from|based in|formed in|headquartered in|located in) (?P<place>{PLACE})")
SINCE = re.compile(
    rf"\b(?:founded|formed|established|created|started|incorporated|opened)(?: in (?:the )?{PLACE})?"
    rf"(?: on (?P<day>{DAY})| in (?:early |late |\w+ )?(?P<when>1[0-9]\d{{2}}|20[0-2]\d)(?![\w–-]))"
)
FOUNDER = re.compile(
    rf"\b(?:founded|formed|established)(?: in [^,.]{{3,40}}?)? by (?:the )?(?:{ADJECTIVE} )?"
    rf"(?:(?!and |the )[a-z/-]+ ){{0,4}}?(?P<name>{NAME})"
)
OWNER = re.compile(rf"\b(?:owned|operated) by (?:the )?(?P<name>{NAME})")
MANY = (
    r"population (?:of|was|is)(?: about| approximately| estimated at| around)? "
    r"(\d{1,3}(?:,\d{3})+|\d{2,})(?!\d|[.,]\d| million)"
)
POPULATION = re.compile(rf"\b{MANY}")
OWN_POPULATION = re.compile(rf"\b(?:[Ii]ts|The|the total) {MANY}")
PUT = re.compile(r"\b(?:located|situated|based|headquartered) in\b")


def seat_facts(topic: Topic) -> Facts:
    """The facts of a passage on a place, or on something that has one."""
    facts: Facts = {}
    for relation, fact in (*_opening(topic), *_told(topic), *_measured(topic)):
        facts.setdefault(relation, fact)
    return facts


def _opening(topic: Topic) -> Iterator[tuple[Relation, Fact]]:
    opening, defined = unbracketed(topic.opening), topic.defined
    found = re.search(r"\b(?:is|was|are|were) (?=(?:an?|the|one of) )", opening)
    if found is None or defined is None:
        return
    rest = opening[found.end() :]
    belongs = nation(defined.phrase)
    if belongs and topic.kind is Kind.GROUP:
        yield Relation.NATIONALITY, Fact(belongs, NATIONS[belongs])
    pattern = LIES if topic.kind is Kind.PLACE or topic.kind is None else FROM
    lies = pattern.search(rest)
    # What is no place lies somewhere only if it says so: a game in Japan does not.
    if lies and (topic.kind is not None or PUT.search(lies[0])) and BEHIND.match(rest[lies.end("place") :]):
        yield from _located(topic, lies["place"])
    yield from _since(rest)


def _located(topic: Topic, told: str) -> Iterator[tuple[Relation, Fact]]:
    fact = place(re.sub(r", in [a-z-]+ ", ", ", told))
    parts = [part for part in re.split(r", (?:in [a-z-]+ )?", told) if part]
    if fact and fact.value == told and topic.title.partition(",")[0] not in parts:
        yield (Relation.LIES_IN if topic.kind is not Kind.GROUP else Relation.SEAT), fact
    if parts[-1] in COUNTRIES:
        yield Relation.COUNTRY, Fact(parts[-1])


def _since(rest: str) -> Iterator[tuple[Relation, Fact]]:
    since, founder, owner = SINCE.search(rest), FOUNDER.search(rest), OWNER.search(rest)
    if since:
        when = since["day"] or since["when"]
        yield Relation.FOUNDED, Fact(when, dates.aliases(when))
    for found, relation in ((founder, Relation.FOUNDER), (owner, Relation.OWNER)):
        name = one_name(rest, found) if found else None
        if name and " " in name:
            yield relation, Fact(name)


def _told(topic: Topic) -> Iterator[tuple[Relation, Fact]]:
    for rest in predicates(topic):
        if re.match(
            r"^,? (?:was|were|is) (?:first |originally )?(?:founded|formed|established|incorporated|owned)", rest
        ):
            yield from _since(rest)
        seat = re.match(rf"^ (?:is|are) (?:headquartered|based|located|situated) in (?P<place>{PLACE})", rest)
        fact = place(seat["place"], rest[seat.end() :]) if seat else None
        if fact:
            yield (Relation.SEAT if topic.kind is Kind.GROUP else Relation.LIES_IN), fact


def _measured(topic: Topic) -> Iterator[tuple[Relation, Fact]]:
    text = topic.passage.text
    if topic.kind is not Kind.PLACE or topic.defined is None:
        return
    found = OWN_POPULATION.search(text) or next(filter(None, map(POPULATION.search, predicates(topic))), None)
    if found:
        yield Relation.POPULATION, Fact(found[1], (found[1].replace(",", ""),))
