"""What a passage is about as others reach it: its kind, its noun and its facts."""

from dataclasses import dataclass

from sleuth.corpus.cloze.facts import Facts
from sleuth.corpus.cloze.lexicon import Lexicon
from sleuth.corpus.cloze.nouns import Kind
from sleuth.corpus.cloze.people import people_facts, trades
from sleuth.corpus.cloze.seats import seat_facts
from sleuth.corpus.cloze.topic import Topic
from sleuth.corpus.cloze.works import work_facts


@dataclass(frozen=True, slots=True)
class Subject:
    """A topic with its facts; `trades` are what a person did, as single nouns."""

    topic: Topic
    facts: Facts
    trades: tuple[str, ...] = ()


def subject(topic: Topic, lexicon: Lexicon) -> Subject:
    """The facts that the rules for its kind find."""
    match topic.kind:
        case Kind.PERSON:
            return Subject(topic, people_facts(topic, lexicon), trades(topic))
        case Kind.WORK:
            return Subject(topic, work_facts(topic))
        case _:
            return Subject(topic, seat_facts(topic) if topic.defined else {})
