"""Words for what stands in a clause, by the rest of it: the university that {x} studied at."""

import re

from sleuth.synthesis.cloze.clauses import Clause
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.verbs import MAKERS, PAST, PRESENT

# The span belongs to the main clause only where nothing of this stands before it.
TURNS = re.compile(
    r"[,\"]| (?:who|which|that|where|when|while|whose|if|because|but|than|after|before|between|from|"
    r"and (?:its|his|her|the|their|he|she|it|was|is|has)) "
)
ADVERB = re.compile(r"^ (?:also|later|then|first|subsequently|eventually|originally|currently|previously|once) ")
STRANDED = frozenset(
    {"by", "for", "with", "from", "to", "of", "as", "after", "against", "under", "alongside", "about", "in", "on", "at"}
    | {"into", "over", "near"}
)
VERB = re.compile(r"^ (?P<verb>[a-z]+)(?P<body>(?: .*)?)$")
BE = frozenset({"is", "was", "are", "were"})
INDEFINITE = re.compile(r"^ (?:an?|one|among|not|often|sometimes|generally|usually|mostly|primarily) ")
OF_MANY = frozenset({"stars", "starred", "features", "featured", "includes", "included", "borders", "bordered"})
MOST_BEFORE, MOST_BEHIND = 5, 4  # words of a clause that calls something by it
DONE_TO = re.compile(r"(?:ed|written|known|made|sung|by)\b|\b(?:never|not)\b")
NAMED = {
    ("born", "in"): "the place where {x} was born",
    ("buried", "in"): "the place where {x} is buried",
    ("located", "in"): "the place where {x} is located",
    ("headquartered", "in"): "the place where {x} is headquartered",
    ("married", None): "the person whom {x} married",
    ("attended", None): "the school that {x} attended",
    ("died", "in"): "the place where {x} died",
}


def callings(clause: Clause) -> tuple[str, ...]:
    """Words with {x} for the subject; none where the clause is long, or would be true of others too."""
    found = VERB.match(ADVERB.sub(" ", clause.before)) if clause.name else None
    span = clause.span
    if found is None or span.listed or span.kind in (Kind.YEAR, Kind.DATE, Kind.NUMBER, Kind.AMOUNT):
        return ()
    verb, body = found["verb"], found["body"]
    if (
        TURNS.search(f"{body} ")
        or verb in OF_MANY
        or not (verb in BE or verb in PAST or verb in PRESENT or verb in ("has", "had"))
    ):
        return ()
    short = _named(verb, body, span.preposition)
    if short:
        return (short,)
    if (
        clause.behind.startswith((" and", " or"))
        or len(clause.behind.split()) > MOST_BEHIND
        or len(body.split()) > MOST_BEFORE
    ):
        return ()
    if verb in BE and INDEFINITE.match(body) and DONE_TO.search(body):
        return ()
    return _relative(clause, verb, body)


def _named(verb: str, body: str, before: str | None) -> str | None:
    words = body.split()
    word = words[0] if words and verb in BE else verb
    preposition = before if body else None
    if preposition == "by" and verb in BE and word in MAKERS and len(words) == 2:
        return f"{MAKERS[word]} {{x}}"
    return NAMED.get((word, preposition)) if len(words) <= 2 else None


def _relative(clause: Clause, verb: str, body: str) -> tuple[str, ...]:
    """The noun of the span, and the clause behind it."""
    span, behind = clause.span, clause.behind
    preposition = span.preposition if body else None
    if span.kind is Kind.PLACE and preposition in ("in", "at"):
        return (f"the {span.noun or 'place'} where {{x}} {verb}{body.removesuffix(f' {preposition}')}{behind}",)
    direct = not body and verb not in BE
    stranded = preposition in STRANDED and body.endswith(f" {preposition}")
    if not (direct or stranded) or not (span.noun or span.kind is Kind.PERSON):
        return ()
    head = f"the {span.noun} that" if span.noun else "the person whom"
    return (f"{head} {{x}} {verb}{body}{behind}",)
