"""All questions that the rules make of a passage, and the choice among them."""

from collections.abc import Iterator, Sequence
from random import Random

from sleuth.synthesis.cloze import defined, fronted, in_place
from sleuth.synthesis.cloze.clauses import clause
from sleuth.synthesis.cloze.drafts import Draft, good, holds, measured, sentence
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.spans import spans
from sleuth.synthesis.cloze.subjects import Subject
from sleuth.synthesis.cloze.told import names, told

# How often each form is taken where a passage has it.
WEIGHTS = {"fronted": 5.0, "subject": 5.0, "defined": 4.0, "told": 3.0, "in place": 2.0}


def drafts(subject: Subject, words: str, lexicon: Lexicon) -> Iterator[Draft]:
    """Every good question of a passage whose answer stands in its measured words."""
    for draft in _all(subject, lexicon):
        if good(draft) and holds(words, measured(draft.answer)):
            yield draft


def drawn(among: Sequence[Draft], dice: Random) -> list[Draft]:
    """The drafts in an order drawn by the weight of their forms, each of them once."""
    counts: dict[str, int] = {}
    for draft in among:
        counts[draft.form] = counts.get(draft.form, 0) + 1
    keys = [dice.random() ** (counts[draft.form] / WEIGHTS[draft.form]) for draft in among]
    return [draft for _, draft in sorted(zip(keys, among, strict=True), key=lambda pair: -pair[0])]


def worded(draft: Draft, subject: Subject, dice: Random) -> str:
    """One of the wordings of a draft."""
    if not draft.asks:
        return draft.text
    return sentence(dice.choice(draft.asks).replace("{x}", dice.choice(names(subject))))


def _all(subject: Subject, lexicon: Lexicon) -> Iterator[Draft]:
    topic = subject.topic
    yield from told(subject)
    yield from defined.stars(topic)
    for statement in topic.statements:
        yield from fronted.subject(statement, topic.title, lexicon)
        named = statement.text.find(topic.title)
        for span in spans(statement.text, statement.subject or 1, lexicon):
            if named <= span.start < named + len(topic.title):
                continue  # a piece of the title itself: Licence to Kill
            part = clause(statement, span)
            yield from defined.made(part)
            yield from fronted.turned(part)
            for draft in in_place.asked(part, part.name or topic.name):
                if part.name or topic.title in draft.text:  # else nobody knows what it speaks of
                    yield draft
