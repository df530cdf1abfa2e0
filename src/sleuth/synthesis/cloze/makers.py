"""Questions over four passages: two works, and the people who made them."""

from collections.abc import Sequence
from random import Random

from sleuth.synthesis.cloze import contrasts, dates
from sleuth.synthesis.cloze.comparisons import NO, YES
from sleuth.synthesis.cloze.facts import Relation
from sleuth.synthesis.cloze.nations import differ
from sleuth.synthesis.cloze.pages import Page
from sleuth.synthesis.cloze.pools import Comparison, either, fact, noun_of, posed


def crosswise(one: tuple[Page, Page], other: tuple[Page, Page], relation: Relation, dice: Random) -> Comparison | None:
    """Two works, each with the page of its maker, compared in what the makers are; None where those do not differ."""
    (work, maker), (second, its_maker) = one, other
    noun, called = noun_of(work), contrasts.MAKERS[relation]
    if maker.title == its_maker.title or noun != noun_of(second) or noun.endswith("s"):
        return None
    shared = [each for each in (*contrasts.MAKER_FIRST, Relation.NATIONALITY) if _known(maker, its_maker, each)]
    if not shared:
        return None
    compared, least = dice.choice(shared), dice.random() < 1 / 2
    templates: Sequence[str]
    if compared is Relation.NATIONALITY:
        answers, templates = _same_nation(maker, its_maker), contrasts.SAME_MAKERS_NATION
    else:
        before = dates.earlier(fact(maker, compared), fact(its_maker, compared))
        answers = None if before is None else either(work if before is least else second)
        templates = contrasts.MAKER_FIRST[compared][0 if least else 1]
    if answers is None:
        return None
    words = [each.replace("{maker}", called) for each in templates]
    return posed(words, (work, second, maker, its_maker), answers, dice, noun)


def _known(one: Page, other: Page, relation: Relation) -> bool:
    return relation in one.subject.facts and relation in other.subject.facts


def _same_nation(one: Page, other: Page) -> tuple[str, ...] | None:
    mine, yours = fact(one, Relation.NATIONALITY), fact(other, Relation.NATIONALITY)
    if mine == yours:
        return YES
    return NO if differ(mine, yours) else None
