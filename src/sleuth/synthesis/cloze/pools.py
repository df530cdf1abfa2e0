"""Pages by what they can be compared in, and the question that sets two of them side by side."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from sleuth.corpus.datasets.merge import key
from sleuth.synthesis.cloze import contrasts
from sleuth.synthesis.cloze.drafts import UNCLEAN, sentence
from sleuth.synthesis.cloze.facts import Relation
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.pages import Page

TRIES = 12  # partners that are looked at before a page is given up
PERSON = "person"
TWICE = re.compile(r"\{noun\}s?,? \{[ab]\}")
VOWEL = re.compile(r"\ba (?=[AEIOaeio])")
Pool = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question over two pages or more, in the order in which they are read."""

    text: str
    answers: tuple[str, ...]
    pages: tuple[Page, ...]


@dataclass(slots=True)
class Pools:
    """Pages by kind and value."""

    pages: dict[Pool, list[Page]] = field(default_factory=lambda: defaultdict(list))

    def add(self, page: Page) -> None:
        """Puts a page where its facts belong."""
        for pool in _pools(page):
            self.pages[pool].append(page)

    def partner(self, pool: Pool, page: Page, dice: Random, fits: Callable[[Page], bool] | None = None) -> Page | None:
        """Another page of a pool that fits; None where a few draws show none."""
        among = self.pages.get(pool, ())
        for _ in range(TRIES if len(among) > 1 else 0):
            other = dice.choice(among)
            if not _alike(other, page) and (fits is None or fits(other)):
                return other
        return None


def _alike(one: Page, other: Page) -> bool:
    """Whether two titles are one, however their accents are written."""
    first, second = (key(page.title) for page in (one, other))
    return first == second


def noun_of(page: Page) -> str:
    """What a page is about, in a word: person, film, village."""
    topic = page.subject.topic
    return PERSON if topic.kind is Kind.PERSON else topic.defined.noun if topic.defined else ""


def fact(page: Page, relation: Relation) -> str:
    """The value that a page has of a relation."""
    return page.subject.facts[relation].value


def either(page: Page) -> tuple[str, ...]:
    """The answers where a page is the one of two: its title, and with what tells it apart."""
    topic = page.subject.topic
    return tuple(dict.fromkeys((topic.title, topic.passage.title, topic.name)))


def posed(
    templates: Sequence[str],
    pages: tuple[Page, ...],
    answers: tuple[str, ...],
    dice: Random,
    noun: str = "",
    value: str = "",
) -> Comparison | None:
    """A question about the first two pages, in either order; None where no template fits their names."""
    names = [page.subject.topic.name for page in pages[:2]]
    said = any(f"{noun} " in name[:-1] and name.startswith("the ") for name in names)  # the films the film Ed Wood
    fit = [text for text in templates if (noun or "{noun}" not in text) and not (said and TWICE.search(text))]
    if not fit:
        return None
    dice.shuffle(names)
    text = VOWEL.sub("an ", dice.choice(fit).replace("{value}", value).replace("{noun}", noun))
    text = sentence(text.replace("{a}", names[0]).replace("{b}", names[1]))
    return None if UNCLEAN.search(text) else Comparison(text, answers, pages)


def _pools(page: Page) -> Iterator[Pool]:
    facts, noun = page.subject.facts, noun_of(page)
    if not noun:
        return
    for relation in (*contrasts.FEWER_OR_MORE, *contrasts.SAME_MAKER, Relation.COUNTRY, Relation.NATIONALITY):
        if relation in facts:
            yield (relation, noun)
    for relation in (Relation.COUNTRY, Relation.NATIONALITY, *contrasts.SAME_MAKER):
        if relation in facts:
            yield (relation, noun, facts[relation].value)
    yield from _kinds(page, noun)


def _kinds(page: Page, noun: str) -> Iterator[Pool]:
    topic, trades = page.subject.topic, page.subject.trades
    if noun != PERSON and topic.kind is not None:
        yield ("kind", noun)
        yield ("kind", "of", topic.kind)
    elif trades:
        yield ("trades",)
    for trade in trades:
        yield ("trade", trade)
        if Relation.BORN in page.subject.facts:
            yield (Relation.BORN, trade)
