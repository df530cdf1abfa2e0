"""The facts of a passage as questions, each with all its wordings."""

from collections.abc import Iterator

from sleuth.synthesis.cloze.drafts import Draft
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.relations import WORDS, asks
from sleuth.synthesis.cloze.subjects import Subject

CALLED = frozenset(
    {"film", "song", "album", "novel", "book", "single", "magazine", "band", "river", "opera", "play", "sitcom"}
)


def told(subject: Subject) -> Iterator[Draft]:
    """One draft for each fact that can be asked for."""
    topic = subject.topic
    noun = topic.defined.noun if topic.defined else "thing"
    for relation, fact in subject.facts.items():
        words = WORDS.get(relation)
        if words is None:
            continue
        texts = asks(relation, fact.value, noun, topic.kind)
        kind = Kind.YEAR if words.kind is Kind.DATE and fact.value.isdigit() else words.kind
        text = texts[0].replace("{x}", topic.name)
        yield Draft(text, fact.value, kind, "told", topic.name, fact.aliases, words.called, texts, relation)


def names(subject: Subject) -> tuple[str, ...]:
    """What a question may call a subject: Ed Wood, the film Ed Wood, film Ed Wood."""
    topic = subject.topic
    noun = topic.defined.noun if topic.defined else ""
    if topic.kind is Kind.PERSON or noun not in CALLED or topic.name != topic.title:
        return (topic.name,)
    return (topic.name, f"the {noun} {topic.name}", f"{noun} {topic.name}")
