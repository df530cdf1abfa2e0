"""Multi-hop questions over linked passages: bridge chains, and intersections of two passages."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from sleuth.synthesis.cloze.english import COUNTRIES_BY_DEMONYM, Kind
from sleuth.synthesis.cloze.grammar import Draft, Form, capitalize, contains_words, is_valid, normalize
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.relations import AGENT_VERBS, KINSHIP, TEMPLATES, Relation
from sleuth.synthesis.cloze.single_hop import Page, topic_names

UNCERTAIN = re.compile(r"\balso\b")
BEFORE_NAME = re.compile(r"(?:^|\b(?:is|was|did|does|of|were|are|has|had|that) )$")
AFTER_NAME = re.compile(r"[?]| [a-z]")
# Topic kinds that a name of each kind can refer to.
TARGETS = {
    **{kind: frozenset({kind}) for kind in (Kind.PERSON, Kind.PLACE, Kind.GROUP, Kind.WORK)},
    Kind.THING: frozenset({Kind.PLACE, Kind.GROUP, Kind.THING}),
}
MAX_IN_SITU_WORDS = 18
GUESSABLE = frozenset({Relation.OCCUPATION, Relation.GENRE})  # answerable without the last passage
REGION_DESCRIPTIONS = {
    Relation.BIRTHPLACE: "the {noun} where {x} was born",
    Relation.DEATHPLACE: "the {noun} where {x} died",
    Relation.LOCATED_IN: "the {noun} where {x} is located",
    Relation.BASED_IN: "the {noun} where {x} is based",
}
REGIONS = frozenset({"country", "state", "county", "province", "city", "region", "municipality", "island"})
FACT_WEIGHT = 3.0  # sampling weight of facts relative to other drafts
PHRASE_LENGTH = range(2, 7)  # words of a definition in an intersection question
CONSTRAINTS = {
    Relation.BORN: "born in {v}",
    Relation.BIRTHPLACE: "born in {v}",
    Relation.BASED_IN: "from {v}",
    Relation.FOUNDED: "formed in {v}",
}


@dataclass(frozen=True, slots=True)
class Link:
    """A reference from one page to others; `descriptions` describe the target, with {x} for the source page's topic."""

    descriptions: tuple[str, ...]
    enclosing_place: str | None
    relation: Relation | None
    rows: tuple[int, ...]
    kinds: frozenset[Kind]
    ambiguous: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """Pages in reading order, and a phrase that describes the last page's topic in terms of the first's."""

    pages: tuple[Page, ...]
    description: str
    relations: tuple[Relation | None, ...]
    alternatives: tuple[Page, ...] = ()  # other pages with the title of the last page


def find_links(page: Page, lexicon: Lexicon) -> Iterator[Link]:
    """Yield the references of a page to titles of the corpus."""
    seen: set[str] = set()
    for draft in page.drafts:
        if not draft.descriptions or draft.answer in seen or not _names_topic(draft, page):
            continue
        kinds = _target_kinds(draft)
        title, _, enclosing = draft.answer.partition(", ")
        candidates = ((draft.answer, None), (f"The {title}", None), (title, enclosing.partition(",")[0] or None))
        for name, place in candidates:
            entry, ambiguous = lexicon.titles.get(name), name in lexicon.ambiguous
            if entry and name != page.title and (entry.kind in kinds or ambiguous):
                seen.add(draft.answer)
                rows = tuple(lexicon.rows[name])
                yield Link(draft.descriptions, place, draft.relation, rows, kinds, ambiguous)
                break
    yield from _region_links(page, lexicon)


def _region_links(page: Page, lexicon: Lexicon) -> Iterator[Link]:
    """Yield links from a place to the regions that contain it, and from a nationality to its country."""
    templates: dict[str, str] = {}
    for relation, fact in page.subject.facts.items():
        if relation in REGION_DESCRIPTIONS:
            templates.update((region, REGION_DESCRIPTIONS[relation]) for region in fact.value.split(", ")[1:])
        if relation is Relation.NATIONALITY and page.subject.topic.kind is not Kind.WORK:
            templates[COUNTRIES_BY_DEMONYM[fact.value][0]] = "the country that {x} is from"
    for name, template in templates.items():
        entry = lexicon.titles.get(name)
        if entry and entry.noun in REGIONS and name not in lexicon.ambiguous and name not in page.title:
            descriptions = (template.replace("{noun}", entry.noun),)
            rows = tuple(lexicon.rows[name])
            yield Link(descriptions, None, None, rows, TARGETS[Kind.PLACE], ambiguous=False)


def start_chain(page: Page, rng: Random) -> Chain:
    """Return a chain of one page."""
    return Chain((page,), rng.choice(topic_names(page.subject.topic)), ())


def extend_chain(chain: Chain, link: Link, page: Page, alternatives: tuple[Page, ...], rng: Random) -> Chain | None:
    """Append a page to a chain; return None if the link does not refer to the page."""
    if any(page.title == each.title for each in chain.pages) or not _refers_to(link, chain.pages[-1], page):
        return None
    name = chain.description
    takes_possessive = not name.endswith("s") and name[-1].isalnum() and "'s" not in name
    descriptions = [each for each in link.descriptions if takes_possessive or "'s" not in each]
    if not descriptions:
        return None
    description = rng.choice(descriptions).replace("{x}", name)
    return Chain((*chain.pages, page), description, (*chain.relations, link.relation), alternatives)


def bridge_drafts(chain: Chain, rng: Random) -> Iterator[Draft]:
    """Yield questions about the last page that name only the topic of the first page, in random order."""
    last, earlier = chain.pages[-1], chain.pages[:-1]
    drafts = [draft for draft in last.drafts if _is_rewritable(draft, last)]
    keys = [rng.random() ** (1 / (FACT_WEIGHT if draft.templates else 1.0)) for draft in drafts]
    for _, draft in sorted(zip(keys, drafts, strict=True), key=lambda pair: -pair[0]):
        answers = [normalize(answer) for answer in draft.answers]
        if (
            draft.relation in GUESSABLE
            or _is_contradicted(draft, chain.alternatives)
            or any(contains_words(page.words, answer) for page in earlier for answer in answers)
        ):
            continue
        draft = replace(draft, text=_bridge_text(draft, chain, rng), name=earlier[0].title)
        question = normalize(draft.text)
        names_hop = any(contains_words(question, normalize(page.title)) for page in chain.pages[1:])
        if is_valid(draft) and not names_hop:
            yield draft


def intersection_draft(chain: Chain, rng: Random) -> Draft | None:
    """Ask for a topic that the first page mentions and the second page is about."""
    first, second = chain.pages
    topic, relation = second.subject.topic, chain.relations[0]
    verb = AGENT_VERBS.get(relation) if relation else None
    if verb is None or topic.definition is None or topic.definition.kind is None:
        return None
    phrase = topic.definition.phrase
    length = len(phrase.split())
    if length not in PHRASE_LENGTH or not phrase[-1].isalpha() or contains_words(first.words, normalize(phrase)):
        return None
    facts = second.subject.facts
    values = [(text, facts[relation].value) for relation, text in CONSTRAINTS.items() if relation in facts]
    constraints = [text.replace("{v}", value[-4:] if value[-4:].isdigit() else value) for text, value in values]
    constraint = f" {rng.choice(constraints)}" if constraints else ""
    text = f"Which {phrase}{constraint} {verb} {rng.choice(topic_names(first.subject.topic))}?"
    draft = Draft(text, topic.title, Kind.PERSON, Form.INTERSECTION, first.title)
    return draft if is_valid(draft) else None


def _is_contradicted(draft: Draft, alternatives: Sequence[Page]) -> bool:
    """Whether another page on the same topic states a different value, such as the population in another year."""
    if draft.relation is None:
        return False
    facts = (page.subject.facts.get(draft.relation) for page in alternatives)
    return any(fact is not None and fact.value != draft.answer for fact in facts)


def _names_topic(draft: Draft, page: Page) -> bool:
    return draft.name in (page.subject.topic.name, page.subject.topic.title)


def _target_kinds(draft: Draft) -> frozenset[Kind]:
    if draft.relation is not None:
        return TEMPLATES[draft.relation].targets
    # A single word of unknown kind is too ambiguous.
    is_specific = draft.kind is not Kind.THING or " " in draft.answer
    return TARGETS.get(draft.kind, frozenset()) if is_specific else frozenset()


def _refers_to(link: Link, first: Page, second: Page) -> bool:
    """Whether the second page is about the target of a link, judged by kind, occupation, and mentions of the first."""
    if link.enclosing_place and not contains_words(second.words, normalize(link.enclosing_place)):
        return False
    topic = second.subject.topic
    if topic.kind not in link.kinds and Kind.THING not in link.kinds and topic.kind is not None:
        return False
    if contains_words(second.words, normalize(first.title)):
        return True
    if link.ambiguous or topic.kind is Kind.WORK:  # many songs share a title, but not their makers
        one, other = first.subject.facts, second.subject.facts
        makers = {one[relation].value for relation in AGENT_VERBS if relation in one}
        return any(other[relation].value in makers for relation in AGENT_VERBS if relation in other)
    occupations = TEMPLATES[link.relation].occupations if link.relation else frozenset()
    return not occupations or bool(occupations & {*second.subject.occupations, topic.noun})


def _is_rewritable(draft: Draft, page: Page) -> bool:
    """Whether the name of the topic occurs exactly once, at a position where a description can replace it."""
    topic = page.subject.topic
    if draft.templates:
        return True
    before, name, after = draft.text.partition(draft.name)
    if not _names_topic(draft, page) or not name or not BEFORE_NAME.search(before) or not AFTER_NAME.match(after):
        return False
    if topic.title in after or UNCERTAIN.search(draft.text) or draft.kind in (Kind.WORK, Kind.GENRE):
        return False
    if topic.kind in (Kind.PERSON, Kind.GROUP, Kind.WORK):
        return draft.form is not Form.IN_SITU or len(draft.text.split()) <= MAX_IN_SITU_WORDS
    return draft.form is Form.FRONTED and draft.kind in (Kind.YEAR, Kind.DATE)


def _bridge_text(draft: Draft, chain: Chain, rng: Random) -> str:
    if not draft.templates:
        return capitalize(draft.text.replace(draft.name, chain.description))
    last = chain.relations[-1]
    kinship = KINSHIP.get((last, draft.relation)) if last and draft.relation else None
    if kinship and len(chain.pages) == 2 and rng.random() < 1 / 2:
        name = chain.pages[0].subject.topic.name
        return rng.choice((f"Who is the {kinship} of {name}?", f"Who is {name}'s {kinship}?"))
    description = chain.description
    takes_possessive = len(description.split()) < 8 and description[-1] != "s" and "'s" not in description
    templates = [each for each in draft.templates if takes_possessive or "'s" not in each]
    return capitalize(rng.choice(templates).replace("{x}", description))
