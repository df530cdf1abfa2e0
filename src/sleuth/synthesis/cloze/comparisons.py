"""Comparison questions over two pages, and bridge comparisons over two works and their makers."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from sleuth.corpus.datasets.merge import question_key
from sleuth.synthesis.cloze import relations as templates
from sleuth.synthesis.cloze.english import Kind, is_earlier, nationalities_differ, year_of
from sleuth.synthesis.cloze.grammar import MALFORMED, capitalize
from sleuth.synthesis.cloze.relations import Relation
from sleuth.synthesis.cloze.single_hop import Page

PERSON = "person"
MAX_TRIES = 12  # partners drawn before giving up on a page
MAX_AGE = 110
AGENT_ENDING = re.compile(r"(?:er|or|ian|ist|ress)$")  # someone who "directs" may be a director
REPEATED_NOUN = re.compile(r"\{noun\}s?,? \{[ab]\}")
BEFORE_VOWEL = re.compile(r"\ba (?=[AEIOaeio])")
PoolKey = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question over two or more pages in reading order."""

    text: str
    answers: tuple[str, ...]
    pages: tuple[Page, ...]


class Comparisons:
    """Generates comparisons between the pages added to it."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._pools: dict[PoolKey, list[Page]] = defaultdict(list)

    def add(self, page: Page) -> None:
        """Make a page available as a partner."""
        for pool in _pool_keys(page):
            self._pools[pool].append(page)

    def compare(self, page: Page) -> Comparison | None:
        """Compare a page with another page, by a random comparison that its facts allow."""
        methods = list(self._methods(page))
        if not methods:
            return None
        method, relation = self._rng.choice(methods)
        return method(page, relation)

    def _methods(self, page: Page) -> "Iterator[tuple[Callable[[Page, Relation], Comparison | None], Relation]]":
        facts, topic = page.subject.facts, page.subject.topic
        for relation in templates.ORDER_TEMPLATES:
            if relation in facts:
                yield from ((self._order, relation), (self._order, relation))
        if Relation.BORN in facts and Relation.DIED in facts:
            yield self._lifespan, Relation.DIED
        if Relation.NATIONALITY in facts:
            for method in (self._same_origin, self._both_of_nationality, self._which_has_nationality):
                yield method, Relation.NATIONALITY
            if topic.kind is Kind.PERSON:
                yield self._shared_nationality, Relation.NATIONALITY
        if Relation.COUNTRY in facts and topic.kind is Kind.PLACE:
            yield from ((self._same_origin, Relation.COUNTRY), (self._same_origin, Relation.COUNTRY))
        for relation in templates.SAME_MAKER:
            if relation in facts:
                yield self._same_maker, relation
        if page.subject.occupations:
            yield self._both_have_occupation, Relation.OCCUPATION
            yield self._shared_occupation, Relation.OCCUPATION
        elif topic.kind is not None and topic.definition:
            yield self._both_of_kind, Relation.OCCUPATION

    def _flip(self) -> bool:
        return self._rng.random() < 1 / 2

    def _partner(self, pool: PoolKey, page: Page, fits: Callable[[Page], bool] | None = None) -> Page | None:
        """Draw a random page that fits and has another title; None after a few failed draws."""
        pages = self._pools.get(pool, ())
        for _ in range(MAX_TRIES if len(pages) > 1 else 0):
            other = self._rng.choice(pages)
            if question_key(other.title) != question_key(page.title) and (fits is None or fits(other)):
                return other
        return None

    def _partner_by_value(self, page: Page, relation: Relation, *, equal: bool) -> Page | None:
        """Draw a page that has the same value of a relation, or whose value certainly differs."""
        value, noun = _value(page, relation), _noun(page)
        if equal:
            return self._partner((relation, noun, value), page)
        return self._partner((relation, noun), page, lambda each: nationalities_differ(value, _value(each, relation)))

    def _order(self, page: Page, relation: Relation) -> Comparison | None:
        """Ask which page came first, or has more of something."""
        noun, occupations = _noun(page), page.subject.occupations
        use_occupation = occupations and relation is Relation.BORN
        shared = self._rng.choice(occupations) if use_occupation and self._flip() else ""
        other = self._partner((relation, shared or noun), page, lambda each: not _name_has_year(each))
        if other is None or _name_has_year(page):
            return None
        one_value, other_value = _value(page, relation), _value(other, relation)
        if relation is Relation.POPULATION:
            fewer, more = int(one_value.replace(",", "")), int(other_value.replace(",", ""))
            before = None if fewer == more else fewer < more
        else:
            before = is_earlier(one_value, other_value)
        if before is None:
            return None
        smaller = self._flip()
        texts = templates.ORDER_TEMPLATES[relation][0 if smaller else 1]
        answers = _title_answers(page if before is smaller else other)
        return fill_template(texts, (page, other), answers, self._rng, shared if noun == PERSON else noun)

    def _lifespan(self, page: Page, relation: Relation) -> Comparison | None:
        other = self._partner((relation, PERSON), page, lambda each: Relation.BORN in each.subject.facts)
        if other is None:
            return None
        age, other_age = (
            year_of(_value(each, Relation.DIED)) - year_of(_value(each, Relation.BORN)) for each in (page, other)
        )
        # Ages computed from years may be off by one.
        if abs(age - other_age) < 2 or not (0 < age < MAX_AGE and 0 < other_age < MAX_AGE):
            return None
        longer = self._flip()
        texts = templates.LIVED_LONGER if longer else templates.LIVED_SHORTER
        return fill_template(
            texts, (page, other), _title_answers(page if (age > other_age) is longer else other), self._rng
        )

    def _same_origin(self, page: Page, relation: Relation) -> Comparison | None:
        """Ask whether two topics have the same nationality, or are in the same country."""
        equal, noun = self._flip(), _noun(page)
        other = self._partner_by_value(page, relation, equal=equal)
        if other is None or noun.endswith("s"):
            return None
        texts: Sequence[str] = templates.SAME_COUNTRY
        if relation is not Relation.COUNTRY:
            texts = templates.SAME_NATIONALITY if noun == PERSON else templates.SAME_COUNTRY_OF_ORIGIN
        return fill_template(texts, (page, other), _yes_no(equal), self._rng, noun)

    def _both_of_nationality(self, page: Page, relation: Relation) -> Comparison | None:
        equal, noun, value = self._flip(), _noun(page), _value(page, relation)
        other = self._partner_by_value(page, relation, equal=equal)
        if other is None or noun.endswith("s") or (not equal and value.lower() in other.words):
            return None
        texts = templates.BOTH_OF_NATIONALITY if noun == PERSON else templates.BOTH_FROM_COUNTRY
        return fill_template(texts, (page, other), _yes_no(equal), self._rng, noun, value)

    def _which_has_nationality(self, page: Page, relation: Relation) -> Comparison | None:
        other, noun, value = self._partner_by_value(page, relation, equal=False), _noun(page), _value(page, relation)
        if other is None or value.lower() in other.words:
            return None
        if noun == PERSON:
            texts: Sequence[str] = templates.WHICH_HAS_NATIONALITY
            noun = next((each for each in page.subject.occupations if each in other.subject.occupations), "")
        else:
            texts = templates.WHICH_IS_FROM_COUNTRY
        return fill_template(texts, (page, other), _title_answers(page), self._rng, noun, value)

    def _shared_nationality(self, page: Page, relation: Relation) -> Comparison | None:
        other, fact = self._partner_by_value(page, relation, equal=True), page.subject.facts[relation]
        if other is None:
            return None
        answers = tuple(dict.fromkeys((fact.value, *fact.aliases)))
        return fill_template(templates.SHARED_NATIONALITY, (page, other), answers, self._rng)

    def _both_have_occupation(self, page: Page, _: Relation) -> Comparison | None:
        equal, occupation = self._flip(), page.subject.occupations[0]
        if equal:
            other = self._partner(("occupation", occupation), page)
        else:
            stem = AGENT_ENDING.sub("", occupation)
            other = self._partner(("occupations",), page, lambda each: stem not in each.words)
        if other is None or occupation.endswith(("man", "s")):
            return None
        texts = templates.BOTH_HAVE_OCCUPATION
        return fill_template(texts, (page, other), _yes_no(equal), self._rng, value=occupation)

    def _shared_occupation(self, page: Page, _: Relation) -> Comparison | None:
        occupation = self._rng.choice(page.subject.occupations)
        other = self._partner(("occupation", occupation), page)
        if other is None or len(set(page.subject.occupations) & set(other.subject.occupations)) != 1:
            return None
        return fill_template(templates.SHARED_OCCUPATION, (page, other), (occupation,), self._rng)

    def _both_of_kind(self, page: Page, _: Relation) -> Comparison | None:
        """Ask whether two topics are both of a kind that neither name reveals."""
        equal, noun = self._flip(), _noun(page)
        pool = ("noun", noun) if equal else ("kind", str(page.subject.topic.kind))
        other = self._partner(pool, page, lambda each: equal or noun not in each.words)
        if other is None or noun.endswith(("s", "y", "h")) or not noun.islower():
            return None
        if any(noun in each.subject.topic.name.lower() for each in (page, other)):
            return None
        return fill_template(templates.BOTH_OF_KIND, (page, other), _yes_no(equal), self._rng, value=noun)

    def _same_maker(self, page: Page, relation: Relation) -> Comparison | None:
        equal, noun, maker = self._flip(), _noun(page), _value(page, relation)
        pool = (relation, noun, maker) if equal else (relation, noun)
        other = self._partner(pool, page, lambda each: equal or _value(each, relation) != maker)
        if other is None or noun.endswith("s"):
            return None
        return fill_template(templates.SAME_MAKER[relation], (page, other), _yes_no(equal), self._rng, noun)


def compare_makers(
    one: tuple[Page, Page], other: tuple[Page, Page], relation: Relation, rng: Random
) -> Comparison | None:
    """Compare two works, each given with its maker's page, by a fact about the makers; None if the facts are equal."""
    (work, maker), (other_work, other_maker) = one, other
    noun = _noun(work)
    if maker.title == other_maker.title or noun != _noun(other_work) or noun.endswith("s"):
        return None
    facts, other_facts = maker.subject.facts, other_maker.subject.facts
    candidates = (*templates.MAKER_ORDER_TEMPLATES, Relation.NATIONALITY)
    known = [each for each in candidates if each in facts and each in other_facts]
    if not known:
        return None
    compared, first = rng.choice(known), rng.random() < 1 / 2
    value, other_value = facts[compared].value, other_facts[compared].value
    texts: Sequence[str]
    if compared is Relation.NATIONALITY:
        if value != other_value and not nationalities_differ(value, other_value):
            return None
        answers, texts = _yes_no(value == other_value), templates.SAME_MAKER_NATIONALITY
    else:
        before = is_earlier(value, other_value)
        if before is None:
            return None
        answers = _title_answers(work if before is first else other_work)
        texts = templates.MAKER_ORDER_TEMPLATES[compared][0 if first else 1]
    texts = [text.replace("{maker}", templates.MAKER_ROLES[relation]) for text in texts]
    return fill_template(texts, (work, other_work, maker, other_maker), answers, rng, noun)


def fill_template(
    texts: Sequence[str],
    pages: tuple[Page, ...],
    answers: tuple[str, ...],
    rng: Random,
    noun: str = "",
    value: str = "",
) -> Comparison | None:
    """Fill a random template with the first two pages in random order; None if no template suits their names."""
    names = [page.subject.topic.name for page in pages[:2]]
    has_noun = any(f"{noun} " in name[:-1] and name.startswith("the ") for name in names)  # the films the film Ed Wood
    usable = [
        text for text in texts if (noun or "{noun}" not in text) and not (has_noun and REPEATED_NOUN.search(text))
    ]
    if not usable:
        return None
    rng.shuffle(names)
    text = BEFORE_VOWEL.sub("an ", rng.choice(usable).replace("{value}", value).replace("{noun}", noun))
    text = capitalize(text.replace("{a}", names[0]).replace("{b}", names[1]))
    return None if MALFORMED.search(text) else Comparison(text, answers, pages)


def _yes_no(answer: bool) -> tuple[str, ...]:
    return ("yes",) if answer else ("no",)


def _title_answers(page: Page) -> tuple[str, ...]:
    """Return the accepted answers for a page: its title with and without disambiguator."""
    topic = page.subject.topic
    return tuple(dict.fromkeys((topic.title, topic.passage.title, topic.name)))


def _value(page: Page, relation: Relation) -> str:
    return page.subject.facts[relation].value


def _noun(page: Page) -> str:
    """Return one noun for the topic of a page: person, film, village."""
    return PERSON if page.subject.topic.kind is Kind.PERSON else page.subject.topic.noun


def _name_has_year(page: Page) -> bool:
    """Whether the name of a page contains a year: the 1994 film Ed Wood."""
    return any(letter.isdigit() for letter in page.subject.topic.name)


def _pool_keys(page: Page) -> Iterator[PoolKey]:
    facts, noun, occupations = page.subject.facts, _noun(page), page.subject.occupations
    if not noun:
        return
    for relation in (*templates.ORDER_TEMPLATES, *templates.SAME_MAKER, Relation.COUNTRY, Relation.NATIONALITY):
        if relation in facts:
            yield (relation, noun)
    for relation in (Relation.COUNTRY, Relation.NATIONALITY, *templates.SAME_MAKER):
        if relation in facts:
            yield (relation, noun, facts[relation].value)
    if noun != PERSON and page.subject.topic.kind is not None:
        yield ("noun", noun)
        yield ("kind", page.subject.topic.kind)
    elif occupations:
        yield ("occupations",)
    for occupation in occupations:
        yield ("occupation", occupation)
        if Relation.BORN in facts:
            yield (Relation.BORN, occupation)
