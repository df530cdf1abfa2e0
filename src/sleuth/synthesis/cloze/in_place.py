"""Questions with the asking words where the answer stood: Ed Wood is a 1994 film directed by whom?"""

import re
from collections.abc import Iterator

from sleuth.synthesis.cloze.callings import callings
from sleuth.synthesis.cloze.clauses import Clause, words
from sleuth.synthesis.cloze.drafts import Draft, punctuated
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.spans import PREPOSITIONS
from sleuth.synthesis.cloze.verbs import PAST, PRESENT

LAST_WORD = re.compile(r"(?<![\w-])[\w-]++$")
NOT_PEOPLE = frozenset({"as", "during", "in", "on", "at", "into", "through"})
HANGING = re.compile(r"^[^,]*, (?:which|who|whose|where) [^,]*$|\bbetween [^,]*$")
# What is not known to be a person, a place or a group is asked for only where the word before says what it is.
CALLS = frozenset({"as", "called", "named", "by"})
GOES_BEFORE = frozenset(
    {"is", "was", "were", "are", "become", "and", "include", "including", "has", "had", "that", "when", "where"}
)


def asked(clause: Clause, name: str) -> Iterator[Draft]:
    """The clause with its span replaced, where the word before can be followed by asking words."""
    span, start = clause.span, f"{clause.name or ''}{clause.before}"
    found = LAST_WORD.search(start)
    last = found[0].lower() if found else ""
    if (
        span.listed
        or (span.kind is Kind.THING and not span.noun and last not in CALLS)
        or (clause.name is None and "," in start)
        or not _may_follow(last, span.kind)
        or " " not in start
        or HANGING.search(start)
        or "respectively" in clause.behind
    ):
        return
    calls = callings(clause)
    for head, asking in _ways(clause, start, last):
        yield Draft(
            punctuated(f"{head} {asking}{clause.behind}"), span.answer, span.kind, "in place", name, span.aliases, calls
        )


def _may_follow(last: str, kind: Kind) -> bool:
    if kind is Kind.PERSON and last in NOT_PEOPLE:
        return False
    if last in PREPOSITIONS or last in PAST or last in PRESENT:
        return True
    return last in GOES_BEFORE - {"and", "that"} and kind in (Kind.NUMBER, Kind.AMOUNT)


def _ways(clause: Clause, start: str, last: str) -> Iterator[tuple[str, str]]:
    """What stands before the asking words, and those."""
    span = clause.span
    without = start.removesuffix(f" {last}")
    match span.kind:
        case Kind.YEAR:
            yield start, "what year"
            yield start, "which year"
        case Kind.DATE if last in ("on", "in"):
            yield (start, "what date") if last == "on" else (without, "when")
            yield without, "when"
        case Kind.DATE:
            return
        case Kind.PLACE if last in ("in", "at") and not span.noun:
            yield (start, "what place") if clause.behind else (without, "where")
        case Kind.PLACE if last == "from" and not span.noun:
            yield start, "where"
        case _:
            yield start, words(span, objective=last in PREPOSITIONS)
