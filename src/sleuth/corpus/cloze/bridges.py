"""Questions of two hops: what a passage is about is called by what another passage says of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from sleuth.corpus.cloze.drafts import Draft, good, holds, measured
from sleuth.corpus.cloze.lexicon import Lexicon
from sleuth.corpus.cloze.nouns import Kind
from sleuth.corpus.cloze.topic import Topic

PRONOUNS = re.compile(r"\balso\b")
BEFORE_NAME = re.compile(r"(?:^|\b(?:is|was|did|does|of|were|are|has|had|that) )$")
BEHIND_NAME = re.compile(r"[?]| [a-z]")
# A person whom a passage names is the one of that title only if the title names a person too.
LEADS_TO = {
    Kind.PERSON: frozenset({Kind.PERSON}),
    Kind.PLACE: frozenset({Kind.PLACE}),
    Kind.GROUP: frozenset({Kind.GROUP, Kind.PERSON}),
    Kind.THING: frozenset({Kind.PERSON, Kind.PLACE, Kind.GROUP}),
}
ASKED_OF_PLACES = frozenset({"fronted", "nature"})


@dataclass(frozen=True, slots=True)
class Bridge:
    """A description of another passage's subject, and the rows that bear its title."""

    description: str
    title: str
    rows: tuple[int, ...]


def bridges(among: list[Draft], lexicon: Lexicon) -> Iterator[Bridge]:
    """What the drafts of a passage describe that has passages of its own, under one meaning."""
    for draft in among:
        for answer in draft.answers:
            entry = lexicon.titles.get(answer)
            if (
                draft.describes
                and answer not in lexicon.ambiguous
                and entry
                and entry.kind in LEADS_TO.get(draft.kind, frozenset())
            ):
                yield Bridge(draft.describes, answer, tuple(lexicon.rows[answer]))
                break


def crossed(bridge: Bridge, first: Topic, second: Topic, among: list[Draft], dice: Random) -> Draft | None:
    """A question about the second passage that names only the first; None where there is none."""
    read = measured(first.passage.contents)
    possible = [
        replace(draft, text=_renamed(draft, bridge.description), name=first.title)
        for draft in among
        if _asks(draft, second) and not any(holds(read, measured(answer)) for answer in draft.answers)
    ]
    fit = [draft for draft in possible if good(draft) and second.title not in draft.text]
    return dice.choice(fit) if fit else None


def _asks(draft: Draft, second: Topic) -> bool:
    """Whether a draft speaks of its subject once, in words that fit a description too."""
    before, name, behind = draft.text.partition(draft.name)
    if draft.name != second.title or not name or not BEFORE_NAME.search(before) or not BEHIND_NAME.match(behind):
        return False
    if draft.name in behind or PRONOUNS.search(draft.text) or draft.kind in (Kind.WORK, Kind.GENRE):
        return False
    return second.kind is Kind.PERSON or draft.form in ASKED_OF_PLACES or draft.form == "in place"


def _renamed(draft: Draft, description: str) -> str:
    text = draft.text.replace(draft.name, description)
    return text[:1].upper() + text[1:]
