"""What a passage is about as others reach it: its kind, its noun and its facts."""

from dataclasses import dataclass

from sleuth.synthesis.cloze.facts import Facts
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.people import people_facts, trades
from sleuth.synthesis.cloze.seats import seat_facts
from sleuth.synthesis.cloze.topic import Topic
from sleuth.synthesis.cloze.works import work_facts


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
