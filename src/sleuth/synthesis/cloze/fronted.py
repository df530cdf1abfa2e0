"""Questions that begin with what they ask for, where the grammar is simple enough to turn a sentence around."""

import re
from collections.abc import Iterator

from sleuth.synthesis.cloze.callings import ADVERB, STRANDED, TURNS, callings
from sleuth.synthesis.cloze.clauses import Clause, words
from sleuth.synthesis.cloze.drafts import Draft, punctuated
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.spans import PREPOSITIONS, Span, leading
from sleuth.synthesis.cloze.topic import Statement
from sleuth.synthesis.cloze.verbs import PAST, supported

VERB = re.compile(r"^ (?P<verb>[a-z]+)(?P<body>(?: .*)?)$")
BE = frozenset({"is", "was", "are", "were"})
HAVE = re.compile(r"^ been ")
ARTICLE = re.compile(r"^ (?:an?|one|among|not|currently|also|often|sometimes|generally|usually|mostly|primarily) ")
TAKES_OBJECT = frozenset(
    """
    raised educated based directed produced published located created released named set held built made founded found
    established recorded elected appointed developed designed used described considered included required provided
    """.split()  # noqa: SIM905 - read as lines
)
AFTER_STRANDED = re.compile(r"^ (?:in|on|at|of|to|from|by|for|with|as|and|or)\b")
FIGURES = re.compile(r"\b\d{4}\b")  # of one of several years
MOST_OF_PLACES = 5  # words between a verb and a place that it is still about
LEFT_ALONE = frozenset({"by", "as", "after", "for"})  # at the end of a question for something of unknown kind
BROKEN = re.compile(r" (?:and|or|the|an?)$| and again\b")
LONGEST = {
    "of": 4,
    "by": 7,
    "for": 7,
    "with": 6,
    "to": 5,
    "from": 5,
    "as": 5,
    "about": 5,
    "near": 3,
    "under": 4,
}  # words before a preposition left at the end
SUBJECT_VERB = frozenset({"is", "was", "are", "were", "has", "had", "won", "wrote", "became"})


def turned(clause: Clause) -> Iterator[Draft]:
    """The clause turned around its verb: Where was Ada born? What did Ada write?"""
    found = VERB.match(ADVERB.sub(" ", clause.before)) if clause.name else None
    span = clause.span
    if found is None or clause.name is None or span.listed:
        return
    verb, body = found["verb"], found["body"]
    support = supported(verb)
    # "found" may also be of "founded"; what is meant is told by nothing here.
    if (verb in BE and not ARTICLE.match(f"{body} ")) or (verb in ("has", "had") and HAVE.match(body)):
        order = f"{verb} {clause.name}{body}"
    elif support is not None and verb not in BE and not _is_passive(verb, body):
        order = f"{support[0]} {clause.name} {support[1]}{body}"
    else:
        return
    if TURNS.search(f"{body} ") or BROKEN.search(clause.before):
        return
    if span.kind in (Kind.YEAR, Kind.DATE) and (verb == "is" or FIGURES.search(body)):
        return
    if span.kind is Kind.PLACE and (len(body.split()) > MOST_OF_PLACES or (verb in BE and body.startswith(" the "))):
        return
    if len(body.split()) > LONGEST.get(span.preposition or "", 12):
        return
    calls = callings(clause)
    for front, rest in _fronts(span, order, direct=not body and verb not in BE):
        stranded = rest == order and bool(body) and bool(AFTER_STRANDED.match(clause.behind))
        tail = "" if stranded or (span.kind is Kind.PLACE and rest != order) else clause.behind
        yield Draft(
            punctuated(f"{front} {rest}{tail}"), span.answer, span.kind, "fronted", clause.name, span.aliases, calls
        )


def subject(statement: Statement, title: str, lexicon: Lexicon) -> Iterator[Draft]:
    """A name that a sentence begins with, asked for: Who directed Ed Wood?"""
    span = leading(statement.text, lexicon) if statement.subject is None else None
    if span is None:
        return
    rest = statement.text[span.end :]
    verb = rest.split()[0]
    if (verb in SUBJECT_VERB or verb in PAST) and title in rest and not re.search(r"[,\"] ", rest[:60]):
        asking = words(span, objective=False)
        yield Draft(
            punctuated(f"{asking}{rest.partition(', ')[0]}"), span.answer, span.kind, "subject", title, span.aliases
        )


def _fronts(span: Span, order: str, direct: bool) -> Iterator[tuple[str, str]]:
    """What may stand first for a span, and what then follows."""
    preposition = span.preposition
    dropped = order.removesuffix(f" {preposition}")
    asking = words(span, objective=False)
    match span.kind:
        case Kind.YEAR:
            yield from ((front, dropped) for front in ("In what year", "When", "In which year"))
        case Kind.DATE if preposition in ("on", "in"):
            yield from ((front, dropped) for front in ("When", "On what date" if preposition == "on" else "When"))
        case Kind.PLACE if preposition in ("in", "at"):
            yield "Where", dropped
            if span.noun:
                yield f"{preposition} which {span.noun}", dropped
        case Kind.DATE:
            return
        case Kind.PLACE if not span.noun:
            return
        case Kind.NUMBER | Kind.AMOUNT if direct or preposition in PREPOSITIONS:
            yield asking, order
        case Kind.NUMBER | Kind.AMOUNT:
            return
        case Kind.THING if not span.noun and not direct and preposition not in LEFT_ALONE:
            return
        case _ if direct or (preposition in STRANDED and order.endswith(f" {preposition}")):
            yield asking, order


def _is_passive(verb: str, body: str) -> bool:
    """Whether a verb that always takes an object has none: Bono, raised in Dublin."""
    return verb in TAKES_OBJECT and bool(body) and body.split()[0] in PREPOSITIONS
