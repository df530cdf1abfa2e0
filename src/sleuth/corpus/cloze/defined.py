"""Questions about what an opening sentence says of its subject: who made it, when it lived, what it is."""

import re
from collections.abc import Iterator, Sequence

from sleuth.corpus.cloze.clauses import Clause
from sleuth.corpus.cloze.drafts import Draft, punctuated
from sleuth.corpus.cloze.nouns import FAMILY, Kind
from sleuth.corpus.cloze.spans import DATE, DEMONYM, Span, date_aliases
from sleuth.corpus.cloze.topic import Topic
from sleuth.corpus.cloze.verbs import MAKERS, active

MADE_BY = re.compile(
    r"^ (?:is|was|are|were) (?:an?|the) (?P<phrase>[^,\"]*?) (?:(?P<other>\w+),? and )?(?P<done>\w+) by$"
)
DONE_IN = re.compile(
    r"^ (?P<be>is|was|are|were) (?:an?|the) (?P<phrase>[^,\"]*?) (?P<done>\w+) (?P<preposition>in|on|at)$"
)
ATTACHED_ELSEWHERE = re.compile(r"\b(?:of|from|about|on|in|with|for|and|at|who|that|which|to)\b")
STARRING = re.compile(r"\bstarring ([^.;]+)$")
NAMES = re.compile(r", and |, | and ")
NAME = re.compile(r"^[A-Z][\w.’'-]+(?: [A-Z][\w.’'-]*){1,3}$")
LASTING = frozenset({"located", "situated", "based", "headquartered", "set"})
BY_NOUN = {
    **dict.fromkeys(("album", "song", "single", "EP", "mixtape"), ("recorded", "the performer of")),
    **dict.fromkeys(("novel", "novella", "book", "poem", "story", "play"), ("wrote", "the author of")),
    **dict.fromkeys(("painting",), ("painted", "the painter of")),
    **dict.fromkeys(("opera", "symphony", "ballet"), ("composed", "the composer of")),
}
PLAIN_LIFE = re.compile(r"^(?P<born>[^–—-]*?\b\d{4})\s*[–—-]\s*(?P<died>[^–—-]*?\b\d{4})\b")
BORN = re.compile(
    r"\b(?:born|b\.)\s+(?:[^\d(),]*?,?\s)?(?:on |in |circa |c\. )?"
    r"(?P<born>\d{1,2} [A-Z][a-z]+,? \d{4}|[A-Z][a-z]+ \d{1,2}, \d{4}|\d{4}\b(?!/))"
)
LIFE = re.compile(r"\(([^()]{4,140})\)")
CALENDAR = re.compile(rf"(?:{DATE.pattern}|\b\d{{4}})$")
WAS_BORN = ("When was {name} born?", "What is the date of birth of {name}?", "On what date was {name} born?")
DIED = ("When did {name} die?", "What is the date of death of {name}?", "On what date did {name} die?")
OCCUPATION = (
    "What is {name}'s occupation?",
    "What was {name}'s profession?",
    "What did {name} do for a living?",
    "What is the occupation of {name}?",
)
NATIONALITY = ("What is the nationality of {name}?", "What nationality is {name}?", "What is {name}'s nationality?")
GENRE = ("What genre is {name}?", "What is the genre of {name}?", "What kind of {noun} is {name}?")
IS = ("What is {name}?", "What kind of thing is {name}?")
GENRES = frozenset(
    """
    comedy drama horror thriller western action adventure documentary fantasy crime romance romantic musical war
    mystery science fiction rock pop folk jazz blues country metal punk electronic biographical psychological
    animated silent historical superhero sports noir hip hop soul
    """.split()  # noqa: SIM905 - read as lines
)
NO_TRADE = FAMILY | {"saint", "peer"}
POPULATION = re.compile(
    r"\bpopulation (?:of|was|is)(?: about| approximately| estimated at)? (\d{1,3}(?:,\d{3})+|\d+)(?!\d|[.,]\d| million)"
)
PEOPLED = ("What is the population of {name}?", "What was the population of {name}?", "How many people live in {name}?")
NOT_A_TRADE = frozenset(
    {"former", "retired", "late", "professional", "contemporary", "famous", "noted", "prominent", "leading", "popular"}
)


def made(clause: Clause) -> Iterator[Draft]:
    """Who made what is defined, and when and where: Who directed Ed Wood?"""
    span, name = clause.span, clause.name
    if name is None or span.listed:
        return
    by, place = MADE_BY.match(clause.before), DONE_IN.match(clause.before)
    if by and not ATTACHED_ELSEWHERE.search(by["phrase"]) and span.kind in (Kind.PERSON, Kind.GROUP, Kind.THING):
        yield from _maker(by, span, name)
    if place and (
        place["done"] in LASTING or (not ATTACHED_ELSEWHERE.search(place["phrase"]) and active(place["done"]))
    ):
        yield from _occasion(place, span, name)


def _maker(by: re.Match[str], span: Span, name: str) -> Iterator[Draft]:
    noun = by["done"]
    who = f"which {span.noun}" if span.noun else "who"
    kind = Kind.PERSON if span.kind is Kind.THING and noun in MAKERS else span.kind
    if noun in BY_NOUN:
        verb, role = BY_NOUN[noun]
    else:
        found = active(noun)
        if found is None:
            return
        other = active(by["other"] or "")
        verb, role = (f"{other} and {found}" if other else found), MAKERS.get(noun, "")
    described = f"{role} {name}" if role else None
    texts = [
        f"{who} {verb} {name}",
        f"{who} {verb} {name}",
        *([f"who is {role} {name}"] if role and not span.noun else []),
    ]
    for text in texts:
        yield Draft(punctuated(text), span.answer, kind, "defined", name, span.aliases, described)


def _occasion(place: re.Match[str], span: Span, name: str) -> Iterator[Draft]:
    done = place["done"]
    be = ("was" if place["be"] == "was" else "is") if done in LASTING else "was"
    fronts: Sequence[str] = ()
    if span.kind is Kind.YEAR:
        fronts = ("In what year", "When")
    elif span.kind is Kind.DATE:
        fronts = ("When",)
    elif span.kind in (Kind.PLACE, Kind.THING) and place["preposition"] != "on":
        fronts = ("Where", f"In which {span.noun}") if span.noun and span.kind is Kind.PLACE else ("Where",)
    described = f"the place where {name} is located" if done in LASTING - {"set", "based"} else None
    for front in fronts:
        kind = Kind.PLACE if span.kind is Kind.THING else span.kind
        yield Draft(
            punctuated(f"{front} {be} {name} {done}"), span.answer, kind, "defined", name, span.aliases, described
        )


def stars(topic: Topic) -> Iterator[Draft]:
    """Who stars in a film: any of those named."""
    found = STARRING.search(topic.opening.rstrip("."))
    if found is None or topic.kind is not Kind.WORK:
        return
    names = [name for name in NAMES.split(found[1]) if NAME.match(name)]
    if len(names) >= 2:
        others = " and ".join(names[1:3])
        yield Draft(
            punctuated(f"who stars in {topic.name}"), names[0], Kind.PERSON, "defined", topic.name, tuple(names[1:])
        )
        yield Draft(
            punctuated(f"who stars alongside {others} in {topic.name}"), names[0], Kind.PERSON, "defined", topic.name
        )


def life(topic: Topic) -> Iterator[Draft]:
    """When someone was born and died, from the brackets behind the name."""
    brackets = LIFE.search(topic.opening[:260]) if topic.kind is Kind.PERSON else None
    if brackets is None or (" " not in topic.title and topic.defined is None):
        return
    whole, born = PLAIN_LIFE.search(brackets[1]), BORN.search(brackets[1])
    dates = (whole["born"] if whole else born["born"] if born else None, whole["died"] if whole else None)
    for date, patterns in zip(dates, (WAS_BORN, DIED), strict=True):
        exact = CALENDAR.search(date) if date else None
        if exact:
            kind = Kind.YEAR if exact[0].isdigit() else Kind.DATE
            for pattern in patterns if kind is Kind.DATE else patterns[:1]:
                yield Draft(pattern.format(name=topic.name), exact[0], kind, "life", topic.name, date_aliases(exact[0]))


def population(topic: Topic) -> Iterator[Draft]:
    """How many live in a place."""
    found = POPULATION.search(topic.passage.text) if topic.kind is Kind.PLACE else None
    if found:
        yield from _each(PEOPLED, topic, found[1], Kind.NUMBER, (found[1].replace(",", ""),))


def nature(topic: Topic) -> Iterator[Draft]:
    """What someone did for a living, of which nation they were, what genre a work is of."""
    if topic.defined is None:
        return
    spoken = topic.defined.phrase.split()
    nation = next(
        (word for word in spoken[:3] if DEMONYM.match(word) or word in ("American", "German", "Welsh", "Thai")), None
    )
    if nation and f"South {nation}" in topic.defined.phrase:
        nation = f"South {nation}"
    lower = [word for word in spoken if word.islower() and word not in NOT_A_TRADE]
    if topic.kind is Kind.PERSON:
        if nation:
            yield from _each(NATIONALITY, topic, nation, Kind.NATIONALITY, ())
        trade = " ".join(lower[-2:])
        if (
            topic.defined.kind is Kind.PERSON
            and lower
            and lower[-1] not in NO_TRADE
            and spoken[-len(lower) :] == lower
            and 1 <= len(lower) <= 2
        ):
            yield from _each(
                OCCUPATION, topic, trade, Kind.OCCUPATION, (lower[-1], f"{nation} {trade}" if nation else trade)
            )
    elif topic.kind is Kind.WORK:
        genre = " ".join(word for word in lower[:-1] if word in GENRES)
        if genre and genre in topic.defined.phrase and topic.defined.noun not in genre:
            yield from _each(GENRE, topic, genre, Kind.GENRE, (f"{genre} {topic.defined.noun}",))
    elif topic.kind in (Kind.PLACE, Kind.GROUP) and 2 <= len(spoken) <= 5:
        yield from _each(IS, topic, topic.defined.phrase, Kind.THING, (topic.defined.noun,))


def _each(patterns: Sequence[str], topic: Topic, answer: str, kind: Kind, aliases: tuple[str, ...]) -> Iterator[Draft]:
    noun = topic.defined.noun if topic.defined else ""
    for pattern in patterns:
        yield Draft(pattern.format(name=topic.name, noun=noun), answer, kind, "nature", topic.name, aliases)
