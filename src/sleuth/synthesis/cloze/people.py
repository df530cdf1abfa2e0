"""What is said of people: their dates, places, nation, trade, family and schools."""

import re
from collections.abc import Iterator

from sleuth.synthesis.cloze import dates
from sleuth.synthesis.cloze.dates import DAY, WHEN
from sleuth.synthesis.cloze.facts import NAME, PLACE, Fact, Facts, Relation, one_name, place, predicates
from sleuth.synthesis.cloze.lexicon import Lexicon, unbracketed
from sleuth.synthesis.cloze.nations import ADJECTIVE, NATIONS, nation
from sleuth.synthesis.cloze.nouns import AGENTS, FAMILY, PEOPLE
from sleuth.synthesis.cloze.topic import Topic

BRACKETS = re.compile(r"\(([^()]{4,160})\)")
EXACT = re.compile(rf"{DAY}|\b\d{{4}}\b")
UNSURE = re.compile(r"\b(?:c|ca|fl)\.|\b(?:circa|before|after|about|baptised|baptized|or|active|reigned)\b|\d/\d|\?")
RANGE = re.compile(r"(?<!\s)(?:(?<=\d{4})\s*+-|\s*+[–—]|\s++-\s)\s*+")
BORN_IN = re.compile(rf"\b(?:born|b\.)\b[^;]*?(?:in|at) (?P<place>{PLACE})")
IN_RANGE = re.compile(rf"^(?:(?P<before>{PLACE}),? {WHEN}|{WHEN},? (?:in )?(?P<behind>{PLACE}))$")
WAS_BORN = re.compile(
    rf"^ was born(?: as)?(?: [A-Z][\w. \"-]+?)?(?: on {DAY},?| in \d{{4}},?)? (?:in|at)"
    rf"(?: the (?:city|town|village|parish|hamlet|suburb) of)? (?P<place>{PLACE})"
)
DIED_IN = re.compile(
    rf"^ died(?: on {DAY},?| in \d{{4}},?)?(?: of [a-z ]+)? (?:in|at)"
    rf"(?: the (?:city|town|village) of)? (?P<place>{PLACE})"
)
ROLE = rf"(?:the )?(?:{ADJECTIVE} )?(?:(?!and |his |her )[a-z-]+ ){{0,4}}?"
CHILD = re.compile(
    rf"\b(?:the|a|an|and)? ?(?:(?:eldest|oldest|second|third|fourth|fifth|youngest|younger|elder|only|first|surviving|"
    rf"illegitimate|legitimate) ){{0,6}}(?:son|daughter) of {ROLE}(?P<father>{NAME})"
    rf"(?:,? and (?:(?:his|her) )?(?:first |second |third )?(?P<wife>wife,? )?{ROLE}(?P<mother>{NAME}))?"
)
MARRIED = re.compile(rf"^ (?:is |was )?married (?:to )?{ROLE}(?P<name>{NAME})")
SPOUSE = re.compile(rf"\b(?P<role>wife|husband|widow|consort) of {ROLE}(?P<name>{NAME})")
SIBLING = re.compile(rf"\b(?P<role>brother|sister) of {ROLE}(?P<name>{NAME})")
OWN = re.compile(
    rf"\b(?:his|her) (?P<role>father|mother|wife|husband|brother|sister),? (?P<name>{NAME})(?=[,.]| (?!and )[a-z]|$)"
)
OWN_RELATIONS = {
    "father": Relation.FATHER,
    "mother": Relation.MOTHER,
    "wife": Relation.WIFE,
    "husband": Relation.HUSBAND,
    "brother": Relation.SIBLING,
    "sister": Relation.SIBLING,
}
SCHOOL = re.compile(
    rf"^ (?:(?:graduated|(?:earned|received|obtained|holds) [^,.]{{0,40}}) from|attended|"
    rf"studied (?:[a-z ]{{1,30}} )?at|was educated at) (?:the )?(?P<name>{NAME})"
)
LEARNING = re.compile(r"\b(?:University|College|School|Academy|Institute|Conservatory|Universität|Lyceum|Seminary)\b")
TEAM = re.compile(rf"\bplays (?:[a-z ]{{1,40}} )?for (?:the )?(?:[a-z]++ ){{0,12}}(?P<name>{NAME})")
TRADES_END = re.compile(
    r"\b(?:who|whose|known|best|born|from|of|in|at|for|with|that|where|most|currently|and a member|is|was|during|"
    r"on|by)\b"
)
TRADE = re.compile(
    r"(?:film |music |art |television |stage |opera |theatre |football |basketball |baseball |tennis |chess )?"
    r"(?<![a-z-])[a-z-]++$"
)
NO_TRADE = FAMILY | {"saint", "peer", "king", "queen", "prince", "princess", "count", "countess", "duke", "duchess"}
MALE, FEMALE = re.compile(r"\b(?:he|his|him|actor|king)\b", re.I), re.compile(r"\b(?:she|her|actress|queen)\b", re.I)


def people_facts(topic: Topic, lexicon: Lexicon) -> Facts:
    """The facts of a passage on a person."""
    facts: Facts = {}
    for relation, fact in (*_life(topic), *_origin(topic), *_told(topic), *_family(topic, lexicon)):
        facts.setdefault(relation, fact)
    return facts


def is_female(text: str) -> bool | None:
    """What pronouns say; None where they say both or nothing."""
    hers, his = len(FEMALE.findall(text)), len(MALE.findall(text))
    return None if hers == his or min(hers, his) * 2 > max(hers, his) else hers > his


def trades(topic: Topic) -> tuple[str, ...]:
    """The occupations that an opening sentence lists, as single nouns."""
    told = _said(topic)
    return tuple(dict.fromkeys(word for word in re.findall(r"[a-z-]+", told) if _is_trade(word)))


def _is_trade(word: str) -> bool:
    return (word in PEOPLE or bool(AGENTS.search(word))) and word not in NO_TRADE


def _said(topic: Topic) -> str:
    """The list of what someone was: American film director, producer and screenwriter."""
    opening = unbracketed(topic.opening)
    found = re.search(r"\b(?:is|was) (?:an?|the) ", opening)
    if found is None or found.start() > 160:
        return ""
    rest = opening[found.end() :]
    end = TRADES_END.search(rest)
    return rest[: end.start()] if end else rest


def _life(topic: Topic) -> Iterator[tuple[Relation, Fact]]:
    brackets = BRACKETS.search(topic.opening[:300])
    if brackets is None or re.search(r"\b(?:is|was)\b", topic.opening[: brackets.start()]):
        return
    inside = brackets[1].rpartition(";")[2].strip()
    if UNSURE.search(inside):
        return
    halves = RANGE.split(inside)
    if "born" in inside or " b. " in f" {inside}":
        halves = halves[:1] if len(halves) != 2 else halves
    elif len(halves) != 2:
        return
    for half, when, where in zip(
        halves, (Relation.BORN, Relation.DIED), (Relation.BIRTHPLACE, Relation.DEATHPLACE), strict=False
    ):
        yield from _half(half.strip(" ,"), when, where)


def _half(half: str, when: Relation, where: Relation) -> Iterator[tuple[Relation, Fact]]:
    found = EXACT.findall(half)
    if len(found) == 1:
        yield when, Fact(found[0], dates.aliases(found[0]))
    if "," not in half and " in " not in half:
        return
    told = BORN_IN.search(half)
    if told is None and not re.match(r"born|b\.|né", half):  # behind "born" comes a name at birth
        told = IN_RANGE.match(re.sub(r"^(?:died|d\.)\s*(?:on )?", "", half))
    name = next((value for value in told.groupdict().values() if value), None) if told else None
    fact = place(name) if name else None
    if fact:
        yield where, fact


def _origin(topic: Topic) -> Iterator[tuple[Relation, Fact]]:
    told = _said(topic)
    belongs = nation(told)
    if belongs and not re.search(rf"{ADJECTIVE}[- ]born", topic.opening):
        yield Relation.NATIONALITY, Fact(belongs, NATIONS[belongs])
    first = told.split(",")[0].split(" and ")[0].strip(" .")
    found = TRADE.search(first)
    if found and _is_trade(first.split()[-1]):
        trade = found[0]
        others = tuple(each for each in (trade.split()[-1],) if each != trade)
        yield Relation.TRADE, Fact(trade, others)


def _told(topic: Topic) -> Iterator[tuple[Relation, Fact]]:
    for rest in predicates(topic):
        for pattern, relation in ((WAS_BORN, Relation.BIRTHPLACE), (DIED_IN, Relation.DEATHPLACE)):
            found = pattern.search(rest)
            fact = place(found["place"], rest[found.end("place") :]) if found else None
            if fact:
                yield relation, fact
        when = re.match(rf"^ (?P<what>was born|died) on (?P<day>{DAY})", rest)
        if when:
            relation = Relation.BORN if when["what"] == "was born" else Relation.DIED
            yield relation, Fact(when["day"], dates.aliases(when["day"]))
        school = SCHOOL.search(rest)
        name = one_name(rest, school) if school else None
        if name and LEARNING.search(name):
            yield Relation.SCHOOL, Fact(name)
        team = TEAM.search(rest)
        name = one_name(rest, team) if team else None
        if name:
            yield Relation.TEAM, Fact(name)
    yield from _born_before(topic)


def _born_before(topic: Topic) -> Iterator[tuple[Relation, Fact]]:
    """Born in Spokane, Washington, McGavin claimed to ..."""
    text = topic.passage.text
    at = text.find("Born in ")
    if 0 <= at < 900:
        called = "|".join(("he", "she", re.escape(topic.title), re.escape(topic.title.split()[-1])))
        found = re.match(
            rf"Born in (?P<place>{PLACE.replace('{0,3}', '{0,3}?')}),? (?:{called})\b", text[at : at + 200]
        )
        fact = place(found["place"]) if found else None
        if fact:
            yield Relation.BIRTHPLACE, fact


def _family(topic: Topic, lexicon: Lexicon) -> Iterator[tuple[Relation, Fact]]:
    weddings = topic.passage.text.count("married")
    hers = is_female(topic.passage.text)
    for rest in predicates(topic):
        child = CHILD.search(rest[:200]) if re.match(r"^ (?:is|was) ", rest) else None
        if child:
            yield from _parents(rest, child, lexicon)
        for pattern in (MARRIED, SPOUSE):
            found = pattern.search(rest[:160])
            name = one_name(rest, found) if found else None
            if found and name and " " in name and weddings <= 1 and lexicon.is_person(name):
                wife = hers is False if pattern is MARRIED else found["role"] == "husband"
                if pattern is SPOUSE or hers is not None:
                    yield (Relation.WIFE if wife else Relation.HUSBAND), Fact(name)
        own = OWN.search(rest)
        if (
            own
            and " " in own["name"]
            and lexicon.is_person(own["name"])
            and not re.search(r"\b(?:who|whose)\b", rest[: own.start()])
        ):
            yield OWN_RELATIONS[own["role"]], Fact(own["name"])
        near = SIBLING.search(rest[:160]) if re.match(r"^ (?:is|was) ", rest) else None
        name = one_name(rest, near) if near else None
        if name and " " in name and lexicon.is_person(name):
            yield Relation.SIBLING, Fact(name)


def _parents(rest: str, child: re.Match[str], lexicon: Lexicon) -> Iterator[tuple[Relation, Fact]]:
    """The first of two is the father unless the given name says otherwise; one alone is told by the name too."""
    first, second = child["father"], child["mother"]
    hers = lexicon.is_woman(first)
    if second and (child["wife"] or lexicon.is_woman(second)) and hers is not True:
        yield Relation.FATHER, Fact(first)
        if " " in second:
            yield Relation.MOTHER, Fact(second)
    elif hers is not None and " " in first and not second and one_name(rest, child, "father"):
        yield (Relation.MOTHER if hers else Relation.FATHER), Fact(first)
