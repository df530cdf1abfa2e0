"""Questions about what an opening sentence says of its subject: who made it, when and where, who stars in it."""

import re
from collections.abc import Iterator, Sequence

from sleuth.synthesis.cloze.clauses import Clause
from sleuth.synthesis.cloze.drafts import Draft, punctuated
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.spans import Span
from sleuth.synthesis.cloze.topic import Topic
from sleuth.synthesis.cloze.verbs import MAKERS, active

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
MOST_STARS = 3
LASTING = frozenset({"located", "situated", "based", "headquartered", "set"})
BY_NOUN = {
    **dict.fromkeys(("album", "song", "single", "EP", "mixtape"), ("recorded", "the performer of")),
    **dict.fromkeys(("novel", "novella", "book", "poem", "story", "play"), ("wrote", "the author of")),
    **dict.fromkeys(("painting",), ("painted", "the painter of")),
    **dict.fromkeys(("opera", "symphony", "ballet"), ("composed", "the composer of")),
}


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
    calls = (f"{role} {{x}}",) if role else ()
    texts = [
        f"{who} {verb} {name}",
        f"{who} {verb} {name}",
        *([f"who is {role} {name}"] if role and not span.noun else []),
    ]
    for text in texts:
        yield Draft(punctuated(text), span.answer, kind, "defined", name, span.aliases, calls)


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
    calls = ("the place where {x} is located",) if done in LASTING - {"set", "based"} else ()
    for front in fronts:
        kind = Kind.PLACE if span.kind is Kind.THING else span.kind
        yield Draft(punctuated(f"{front} {be} {name} {done}"), span.answer, kind, "defined", name, span.aliases, calls)


def stars(topic: Topic) -> Iterator[Draft]:
    """Who stars in a film: any of those named."""
    found = STARRING.search(topic.opening.rstrip("."))
    if found is None or topic.kind is not Kind.WORK:
        return
    names = [name for name in NAMES.split(found[1]) if NAME.match(name)]
    if len(names) < 2:
        return
    yield Draft(
        punctuated(f"who stars in {topic.name}"), names[0], Kind.PERSON, "defined", topic.name, tuple(names[1:])
    )
    if len(names) > MOST_STARS or len(names) < len(NAMES.split(found[1])):
        return  # those left out would be right answers too
    for name in names:
        others = " and ".join(each for each in names if each != name)
        calls = (f"the actor who stars alongside {others} in {{x}}", f"the star of {{x}} beside {others}")
        text = punctuated(f"who stars alongside {others} in {topic.name}")
        yield Draft(text, name, Kind.PERSON, "defined", topic.name, (), calls)
