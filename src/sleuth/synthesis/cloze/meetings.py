"""Questions for someone whom one passage names and another describes."""

from random import Random

from sleuth.synthesis.cloze.bridges import Chain
from sleuth.synthesis.cloze.drafts import Draft, good, holds, measured
from sleuth.synthesis.cloze.facts import Fact, Relation
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.pages import Page
from sleuth.synthesis.cloze.relations import DID
from sleuth.synthesis.cloze.told import names

PHRASE = range(2, 7)  # words that say what someone is
KNOWN = {
    Relation.BORN: "born in {v}",
    Relation.BIRTHPLACE: "born in {v}",
    Relation.SEAT: "from {v}",
    Relation.FOUNDED: "formed in {v}",
}


def met(chain: Chain, dice: Random) -> Draft | None:
    """A question for the second page's subject, which one passage names and the other describes."""
    first, second = chain.pages
    topic, relation = second.subject.topic, chain.relations[0]
    verb = DID.get(relation) if relation else None
    if verb is None or topic.defined is None or topic.defined.kind is None:
        return None
    phrase = topic.defined.phrase
    if len(phrase.split()) not in PHRASE or not phrase[-1].isalpha() or holds(first.words, measured(phrase)):
        return None
    told = [text.replace("{v}", _year(fact.value)) for text, fact in _known(second)]
    known = f" {dice.choice(told)}" if told else ""
    text = f"Which {phrase}{known} {verb} {dice.choice(names(first.subject))}?"
    draft = Draft(text, topic.title, Kind.PERSON, "met", first.title)
    return draft if good(draft) else None


def _known(page: Page) -> list[tuple[str, Fact]]:
    return [(text, page.subject.facts[each]) for each, text in KNOWN.items() if each in page.subject.facts]


def _year(value: str) -> str:
    """A date as short as one says it by the way."""
    return value[-4:] if value[-4:].isdigit() else value
