"""The clause of a sentence that holds a span, made short; and the words that ask for the span."""

import re
from dataclasses import dataclass, replace

from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.spans import Span
from sleuth.synthesis.cloze.topic import Statement
from sleuth.synthesis.cloze.verbs import IRREGULAR, PAST

END = re.compile(
    r",(?!\d)|\s(?:and|but) (?:is|was|were|has|had|may|can|could|would|will|did|later|then|"
    r"also|the|he|she|it|they|at|in|for|by|with|to|from|on|as|"
    r"\w+ed|\w+ing|"
    + "|".join(IRREGULAR)
    + r")\b|\s(?:where|while|when|although|because|but|before|after which|who|which)\b| – |\. "
)
AGAIN = re.compile(r",? and (?:later |then |also |subsequently |eventually |currently )?(?=([a-z]+) (?!by\b))")
BE = frozenset({"is", "was", "were", "are", "has", "had"})
WHERE = re.compile(
    r"\b(?:born|died|located|situated|raised|lived|lives|based|settled|buried|headquartered|held|resides|grew up|"
    r"stationed|stayed|interred|imprisoned|educated|filmed|shot|set|moved|founded)(?: on [\w ,]{6,18})? (?:in|at|to)$"
)
MAKERS = re.compile(
    r"\b(?:directed|written|composed|produced|created|hosted|co-written|starring|married|painted|sung|portrayed|played|"
    r"novel|wife|husband|brother|sister|married to|"
    r"(?:son|daughter|father|mother|brother|sister|nephew|niece|grandson) of)(?: by)?$"
)


@dataclass(frozen=True, slots=True)
class Clause:
    """Subject, what stands before a span, the span, and what stands behind it to the end of the clause."""

    name: str | None
    before: str
    span: Span
    behind: str


def clause(statement: Statement, span: Span) -> Clause:
    """The clause of a statement with a span: earlier verbs of the same subject and later clauses are left out."""
    text = statement.text
    before, behind = text[: span.start], text[span.end :]
    end = END.search(behind)
    behind = behind[: end.start()] if end else behind
    name = None
    if statement.subject is not None:
        name, before = before[: statement.subject], before[statement.subject :]
        again = [found for found in AGAIN.finditer(before) if found[1] in BE or found[1] in PAST]
        before = f" {before[again[-1].end() :]}" if again else before
    return Clause(name, before.rstrip(), _placed(span, before), behind)


def words(span: Span, objective: bool) -> str:
    """What asks for a span: which band, who, how many books."""
    match span.kind:
        case Kind.PERSON:
            return f"which {span.noun}" if span.noun else "whom" if objective else "who"
        case Kind.NUMBER:
            return f"how many {span.noun}"
        case Kind.AMOUNT:
            return "what percentage" if span.noun else "how much money"
        case Kind.YEAR:
            return "what year"
        case Kind.DATE:
            return "what date"
        case Kind.PLACE if not span.noun:
            return "what place"
        case _:
            return f"which {span.noun}" if span.noun else "whom" if span.preposition == "by" and objective else "what"


def _placed(span: Span, before: str) -> Span:
    """The span with the kind that the words before it give it."""
    if span.kind is not Kind.THING or span.noun:
        return span
    if WHERE.search(before.rstrip()):
        return replace(span, kind=Kind.PLACE)
    return replace(span, kind=Kind.PERSON) if MAKERS.search(before.rstrip()) else span
