"""Questions over several passages in a row: what one passage is about is called by what another says of it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from sleuth.synthesis.cloze.drafts import Draft, good, holds, measured, sentence
from sleuth.synthesis.cloze.facts import Relation
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.nations import NATIONS
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.pages import Page
from sleuth.synthesis.cloze.relations import DID, KIN, WORDS
from sleuth.synthesis.cloze.told import names

UNCERTAIN = re.compile(r"\balso\b")
BEFORE_NAME = re.compile(r"(?:^|\b(?:is|was|did|does|of|were|are|has|had|that) )$")
BEHIND_NAME = re.compile(r"[?]| [a-z]")
# A person whom a passage names is the one of that title only if the title names a person too.
LEADS_TO = {
    Kind.PERSON: frozenset({Kind.PERSON}),
    Kind.PLACE: frozenset({Kind.PLACE}),
    Kind.GROUP: frozenset({Kind.GROUP}),
    Kind.WORK: frozenset({Kind.WORK}),
    Kind.THING: frozenset({Kind.PLACE, Kind.GROUP, Kind.THING}),
}
MOST_WORDS = 18  # of a sentence that is asked about in place
# What hardly needs the passage that it is asked of: what the director does, of what nation a place is.
PLAIN = frozenset({Relation.TRADE, Relation.GENRE})
LYING = {
    Relation.BIRTHPLACE: "the {noun} where {x} was born",
    Relation.DEATHPLACE: "the {noun} where {x} died",
    Relation.LIES_IN: "the {noun} where {x} is located",
    Relation.SEAT: "the {noun} where {x} is based",
}
REGIONS = frozenset({"country", "state", "county", "province", "city", "region", "municipality", "island"})
TOLD_FIRST = 3.0  # how much rather a fact is asked for than another piece of a sentence


@dataclass(frozen=True, slots=True)
class Link:
    """Words for the subject of other passages, with {x} for that of the first; `within` is what a place lies in."""

    calls: tuple[str, ...]
    within: str | None
    relation: Relation | None
    rows: tuple[int, ...]
    kinds: frozenset[Kind]
    doubtful: bool  # whether several bear the name


@dataclass(frozen=True, slots=True)
class Chain:
    """Pages in the order in which they are read, and how the first calls the subject of the last."""

    pages: tuple[Page, ...]
    called: str
    relations: tuple[Relation | None, ...]
    rivals: tuple[Page, ...] = ()  # other pages about the subject of the last


def links(page: Page, lexicon: Lexicon) -> Iterator[Link]:
    """What a page names that has passages of its own."""
    seen: set[str] = set()
    for draft in page.drafts:
        if not draft.calls or draft.answer in seen or not _is_subject(draft, page):
            continue
        title, _, within = draft.answer.partition(", ")
        for name, inside in ((draft.answer, None), (f"The {title}", None), (title, within.partition(",")[0] or None)):
            entry = lexicon.titles.get(name)
            if entry and name != page.title and (entry.kind in _kinds(draft) or name in lexicon.ambiguous):
                seen.add(draft.answer)
                rows = tuple(lexicon.rows[name])
                yield Link(draft.calls, inside, draft.relation, rows, _kinds(draft), name in lexicon.ambiguous)
                break
    yield from _regions(page, lexicon)


def _regions(page: Page, lexicon: Lexicon) -> Iterator[Link]:
    """What places lie in that a page names, and the country of a nation."""
    named: dict[str, str] = {}
    for relation, fact in page.subject.facts.items():
        pattern = LYING.get(relation)
        if pattern is not None:
            named.update((part, pattern) for part in fact.value.split(", ")[1:])
        if relation is Relation.NATIONALITY and page.subject.topic.kind is not Kind.WORK:
            named[NATIONS[fact.value][0]] = "the country that {x} is from"
    for name, pattern in named.items():
        entry = lexicon.titles.get(name)
        if entry and entry.noun in REGIONS and name not in lexicon.ambiguous and name not in page.title:
            calls = (pattern.replace("{noun}", entry.noun),)
            yield Link(calls, None, None, tuple(lexicon.rows[name]), LEADS_TO[Kind.PLACE], doubtful=False)


def starts(page: Page, dice: Random) -> Chain:
    """A chain of one page."""
    return Chain((page,), dice.choice(names(page.subject)), ())


def longer(chain: Chain, link: Link, page: Page, rivals: tuple[Page, ...], dice: Random) -> Chain | None:
    """The chain with one page more; None where that is not whom the link means."""
    if any(page.title == each.title for each in chain.pages) or not _fits(link, chain.pages[-1], page):
        return None
    owns = chain.called.endswith("s") or not chain.called[-1].isalnum() or "'s" in chain.called
    calls = [each for each in link.calls if not owns or "'s" not in each]
    if not calls:
        return None
    called = dice.choice(calls).replace("{x}", chain.called)
    return Chain((*chain.pages, page), called, (*chain.relations, link.relation), rivals)


def asked(chain: Chain, dice: Random) -> Iterator[Draft]:
    """The questions about the last page that name only the first, in an order drawn by lot."""
    last, earlier = chain.pages[-1], chain.pages[:-1]
    possible = [draft for draft in last.drafts if _asks(draft, last)]
    keys = [dice.random() ** (1 / (TOLD_FIRST if draft.asks else 1.0)) for draft in possible]
    for _, draft in sorted(zip(keys, possible, strict=True), key=lambda pair: -pair[0]):
        answers = [measured(answer) for answer in draft.answers]
        if (
            draft.relation in PLAIN
            or _disputed(draft, chain.rivals)
            or any(holds(page.words, each) for page in earlier for each in answers)
        ):
            continue
        worded = replace(draft, text=_renamed(draft, chain, dice), name=earlier[0].title)
        if good(worded) and not _tells(worded.text, chain):
            yield worded


def _disputed(draft: Draft, rivals: Sequence[Page]) -> bool:
    """Whether another passage on the same subject says otherwise, such as the population of another year."""
    found = (page.subject.facts.get(draft.relation) for page in rivals) if draft.relation else ()
    return any(fact is not None and fact.value != draft.answer for fact in found)


def _is_subject(draft: Draft, page: Page) -> bool:
    return draft.name in (page.subject.topic.name, page.subject.topic.title)


def _kinds(draft: Draft) -> frozenset[Kind]:
    if draft.relation is not None:
        return WORDS[draft.relation].kinds
    # A single word of unknown kind may mean anything.
    return LEADS_TO.get(draft.kind, frozenset()) if draft.kind is not Kind.THING or " " in draft.answer else frozenset()


def _fits(link: Link, first: Page, second: Page) -> bool:
    """Whether a passage is about what the link means: of that trade, or speaking of what led to it."""
    if link.within and not holds(second.words, measured(link.within)):
        return False
    kind = second.subject.topic.kind
    if kind not in link.kinds and Kind.THING not in link.kinds and kind is not None:
        return False
    if link.doubtful or second.subject.topic.kind is Kind.WORK:
        return holds(second.words, measured(first.title)) or _one_maker(first, second)
    trades = WORDS[link.relation].trades if link.relation else frozenset()
    topic = second.subject.topic
    has = {*second.subject.trades, topic.defined.noun if topic.defined else ""}
    return not trades or bool(trades & has) or holds(second.words, measured(first.title))


def _one_maker(first: Page, second: Page) -> bool:
    """Whether two works are by the same people: a title alone means many songs."""
    mine, yours = (
        {page.subject.facts[each].value for each in DID if each in page.subject.facts} for page in (first, second)
    )
    return bool(mine & yours)


def _tells(text: str, chain: Chain) -> bool:
    """Whether a question names what must be found first."""
    asked = measured(text)
    return any(holds(asked, measured(page.title)) for page in chain.pages[1:])


def _asks(draft: Draft, page: Page) -> bool:
    """Whether a draft speaks of its subject once, in words that fit a description too."""
    topic = page.subject.topic
    if draft.asks:
        return True
    before, name, behind = draft.text.partition(draft.name)
    if not _is_subject(draft, page) or not name or not BEFORE_NAME.search(before) or not BEHIND_NAME.match(behind):
        return False
    if topic.title in behind or UNCERTAIN.search(draft.text) or draft.kind in (Kind.WORK, Kind.GENRE):
        return False
    if topic.kind in (Kind.PERSON, Kind.GROUP, Kind.WORK):
        return draft.form != "in place" or len(draft.text.split()) <= MOST_WORDS
    return draft.form == "fronted" and draft.kind in (Kind.YEAR, Kind.DATE)


def _renamed(draft: Draft, chain: Chain, dice: Random) -> str:
    if not draft.asks:
        return sentence(draft.text.replace(draft.name, chain.called))
    last = chain.relations[-1]
    kin = KIN.get((last, draft.relation)) if last and draft.relation else None
    if kin and len(chain.pages) == 2 and dice.random() < 1 / 2:
        name = chain.pages[0].subject.topic.name
        return dice.choice((f"Who is the {kin} of {name}?", f"Who is {name}'s {kin}?"))
    plain = len(chain.called.split()) < 8 and chain.called[-1] != "s" and "'s" not in chain.called
    fit: Sequence[str] = draft.asks if plain else [each for each in draft.asks if "'s" not in each]
    return sentence(dice.choice(fit).replace("{x}", chain.called))
