"""All questions that the rules make of a passage, and the choice among them."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from random import Random

from sleuth.corpus.cloze import defined, fronted, in_place
from sleuth.corpus.cloze.clauses import clause
from sleuth.corpus.cloze.drafts import Draft, good, holds, measured
from sleuth.corpus.cloze.lexicon import Lexicon
from sleuth.corpus.cloze.spans import spans
from sleuth.corpus.cloze.topic import Topic

NAMED = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+|\b\d{4}\b")
ENOUGH = 3  # names and years in a question that does not name its subject
# How often each form is taken where a passage has it; what every biography has is held back.
WEIGHTS = {"fronted": 6.0, "subject": 6.0, "defined": 4.0, "in place": 2.0, "life": 0.6, "nature": 0.5}


def drafts(topic: Topic, lexicon: Lexicon) -> list[Draft]:
    """Every good question of a passage whose answer stands in it as it is measured."""
    read = measured(topic.passage.contents)
    return [draft for draft in _all(topic, lexicon) if good(draft) and holds(read, measured(draft.answer))]


def chosen(among: Sequence[Draft], dice: Random) -> Draft:
    """One of several drafts: first its form, by weight, then one of that form."""
    forms = {form: list(each) for form, each in groupby(sorted(among, key=_form), key=_form)}
    form = dice.choices(list(forms), [WEIGHTS[name] for name in forms])[0]
    return dice.choice(forms[form])


def _anchored(draft: Draft, topic: Topic) -> bool:
    """Whether a question without the subject of its passage names enough to be found."""
    return topic.title in draft.text or len(set(NAMED.findall(draft.text))) >= ENOUGH


def _form(draft: Draft) -> str:
    return draft.form


def _all(topic: Topic, lexicon: Lexicon) -> Iterator[Draft]:
    yield from defined.life(topic)
    yield from defined.nature(topic)
    yield from defined.stars(topic)
    yield from defined.population(topic)
    for statement in topic.statements:
        yield from fronted.subject(statement, topic.title, lexicon)
        named = statement.text.find(topic.title)
        for span in spans(statement.text, statement.subject or 1, lexicon):
            if named <= span.start < named + len(topic.title):
                continue  # a piece of the title itself: Licence to Kill
            part = clause(statement, span)
            yield from defined.made(part)
            yield from fronted.turned(part)
            yield from (
                draft for draft in in_place.asked(part, part.name or topic.name) if part.name or _anchored(draft, topic)
            )
