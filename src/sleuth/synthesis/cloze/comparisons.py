"""Comparisons of two pages: who was born first, which came out earlier, are both of one nation?"""

import re
from collections.abc import Callable, Iterator, Sequence
from random import Random

from sleuth.synthesis.cloze import contrasts, dates
from sleuth.synthesis.cloze.facts import Relation
from sleuth.synthesis.cloze.nations import differ
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.pages import Page
from sleuth.synthesis.cloze.pools import PERSON, Comparison, Pools, either, fact, noun_of, posed

YES, NO = ("yes",), ("no",)
OLDEST = 110
AGENT = re.compile(r"(?:er|or|ian|ist|ress)$")  # what makes a trade of a verb: someone who directs may be a director
Sort = Callable[[Page, Relation, Pools, Random], Comparison | None]


def compared(page: Page, pools: Pools, dice: Random) -> Comparison | None:
    """One comparison of a page with another, of a sort drawn by lot among those that its facts allow."""
    sorts = list(_sorts(page))
    if not sorts:
        return None
    sort, relation = dice.choice(sorts)
    return sort(page, relation, pools, dice)


def _sorts(page: Page) -> Iterator[tuple[Sort, Relation]]:
    facts, topic = page.subject.facts, page.subject.topic
    for relation in contrasts.FEWER_OR_MORE:
        if relation in facts:
            yield from ((each, relation) for each in (_ordered, _ordered))
    if Relation.BORN in facts and Relation.DIED in facts:
        yield _lasting, Relation.DIED
    if Relation.NATIONALITY in facts:
        yield from ((each, Relation.NATIONALITY) for each in (_same, _both, _one))
        if topic.kind is Kind.PERSON:
            yield _shared, Relation.NATIONALITY
    if Relation.COUNTRY in facts and topic.kind is Kind.PLACE:
        yield from ((each, Relation.COUNTRY) for each in (_same, _same))
    for relation in contrasts.SAME_MAKER:
        if relation in facts:
            yield _makers, relation
    if page.subject.trades:
        yield from ((each, Relation.TRADE) for each in (_trades, _common))
    elif topic.kind is not None and topic.defined:
        yield _kinds, Relation.TRADE


def _ordered(page: Page, relation: Relation, pools: Pools, dice: Random) -> Comparison | None:
    """Which of two was first, or has more."""
    noun, trades = noun_of(page), page.subject.trades
    shared = dice.choice(trades) if trades and relation is Relation.BORN and dice.random() < 1 / 2 else ""
    other = pools.partner((relation, shared or noun), page, dice, lambda each: not _dated(each))
    before = _before(page, other, relation) if other and not _dated(page) else None
    if other is None or before is None:
        return None
    least = dice.random() < 1 / 2
    templates = contrasts.FEWER_OR_MORE[relation][0 if least else 1]
    answers = either(page if before is least else other)
    return posed(templates, (page, other), answers, dice, shared if noun == PERSON else noun)


def _dated(page: Page) -> bool:
    """Whether a name tells its year: the 1994 film Ed Wood."""
    return any(letter.isdigit() for letter in page.subject.topic.name)


def _before(page: Page, other: Page, relation: Relation) -> bool | None:
    mine, yours = fact(page, relation), fact(other, relation)
    if relation is not Relation.POPULATION:
        return dates.earlier(mine, yours)
    few, many = int(mine.replace(",", "")), int(yours.replace(",", ""))
    return None if few == many else few < many


def _lasting(page: Page, relation: Relation, pools: Pools, dice: Random) -> Comparison | None:
    """Who lived longer."""
    other = pools.partner((relation, PERSON), page, dice, lambda each: Relation.BORN in each.subject.facts)
    if other is None:
        return None
    mine, yours = (
        dates.year(fact(each, Relation.DIED)) - dates.year(fact(each, Relation.BORN)) for each in (page, other)
    )
    if abs(mine - yours) < 2 or not (0 < mine < OLDEST and 0 < yours < OLDEST):  # days may make a year of it
        return None
    longest = dice.random() < 1 / 2
    templates = contrasts.LONGER if longest else contrasts.SHORTER
    return posed(templates, (page, other), either(page if (mine > yours) is longest else other), dice)


def _pair(page: Page, relation: Relation, pools: Pools, dice: Random, *, agree: bool) -> Page | None:
    """Another page with the same value, or one with surely another."""
    value, noun = fact(page, relation), noun_of(page)
    if agree:
        return pools.partner((relation, noun, value), page, dice)
    return pools.partner((relation, noun), page, dice, lambda each: differ(value, fact(each, relation)))


def _same(page: Page, relation: Relation, pools: Pools, dice: Random) -> Comparison | None:
    """Whether two are of one nation, or in one country."""
    agree, noun = dice.random() < 1 / 2, noun_of(page)
    other = _pair(page, relation, pools, dice, agree=agree)
    if other is None or noun.endswith("s"):
        return None
    origin: Sequence[str] = contrasts.SAME_NATION if noun == PERSON else contrasts.SAME_ORIGIN
    templates = contrasts.SAME_COUNTRY if relation is Relation.COUNTRY else origin
    return posed(templates, (page, other), YES if agree else NO, dice, noun)


def _both(page: Page, relation: Relation, pools: Pools, dice: Random) -> Comparison | None:
    """Whether both are of a nation that is named."""
    agree, noun, value = dice.random() < 1 / 2, noun_of(page), fact(page, relation)
    other = _pair(page, relation, pools, dice, agree=agree)
    if other is None or noun.endswith("s") or (not agree and value.lower() in other.words):
        return None
    templates = contrasts.BOTH_OF_NATION if noun == PERSON else contrasts.BOTH_OF_ORIGIN
    return posed(templates, (page, other), YES if agree else NO, dice, noun, value)


def _one(page: Page, relation: Relation, pools: Pools, dice: Random) -> Comparison | None:
    """Which of two is of a nation that is named."""
    other, noun, value = _pair(page, relation, pools, dice, agree=False), noun_of(page), fact(page, relation)
    if other is None or value.lower() in other.words:
        return None
    shared = next((trade for trade in page.subject.trades if trade in other.subject.trades), "")
    templates = contrasts.OF_NATION if noun == PERSON else contrasts.OF_ORIGIN
    return posed(templates, (page, other), either(page), dice, shared if noun == PERSON else noun, value)


def _shared(page: Page, relation: Relation, pools: Pools, dice: Random) -> Comparison | None:
    """Of which nation two are."""
    other, mine = _pair(page, relation, pools, dice, agree=True), page.subject.facts[relation]
    if other is None:
        return None
    return posed(contrasts.SHARED_NATION, (page, other), tuple(dict.fromkeys((mine.value, *mine.aliases))), dice)


def _trades(page: Page, relation: Relation, pools: Pools, dice: Random) -> Comparison | None:
    """Whether both had an occupation that is named."""
    del relation
    agree, trade = dice.random() < 1 / 2, page.subject.trades[0]
    if agree:
        other = pools.partner(("trade", trade), page, dice)
    else:
        stem = AGENT.sub("", trade)
        other = pools.partner(("trades",), page, dice, lambda each: stem not in each.words)
    if other is None or trade.endswith(("man", "s")):
        return None
    return posed(contrasts.BOTH_TRADES, (page, other), YES if agree else NO, dice, value=trade)


def _common(page: Page, relation: Relation, pools: Pools, dice: Random) -> Comparison | None:
    """The one occupation that two share."""
    del relation
    trade = dice.choice(page.subject.trades)
    other = pools.partner(("trade", trade), page, dice)
    if other is None or len(set(page.subject.trades) & set(other.subject.trades)) != 1:
        return None
    return posed(contrasts.SHARED_TRADE, (page, other), (trade,), dice)


def _kinds(page: Page, relation: Relation, pools: Pools, dice: Random) -> Comparison | None:
    """Whether both are of a kind that neither name tells."""
    del relation
    agree, noun = dice.random() < 1 / 2, noun_of(page)
    key = ("kind", noun) if agree else ("kind", "of", str(page.subject.topic.kind))
    other = pools.partner(key, page, dice, lambda each: agree or noun not in each.words)
    if other is None or noun.endswith(("s", "y", "h")) or not noun.islower():
        return None
    if any(noun in each.subject.topic.name.lower() for each in (page, other)):
        return None
    return posed(contrasts.BOTH_KINDS, (page, other), YES if agree else NO, dice, value=noun)


def _makers(page: Page, relation: Relation, pools: Pools, dice: Random) -> Comparison | None:
    """Whether two works have one maker."""
    agree, noun, maker = dice.random() < 1 / 2, noun_of(page), fact(page, relation)
    key = (relation, noun, maker) if agree else (relation, noun)
    other = pools.partner(key, page, dice, lambda each: agree or fact(each, relation) != maker)
    if other is None or noun.endswith("s"):
        return None
    return posed(contrasts.SAME_MAKER[relation], (page, other), YES if agree else NO, dice, noun)
