"""A passage as it was read: its subject, and every question that can be asked of it alone."""

from dataclasses import dataclass

from sleuth.records import Passage
from sleuth.synthesis.cloze.drafts import Draft, measured
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.questioner import drafts
from sleuth.synthesis.cloze.subjects import Subject, subject
from sleuth.synthesis.cloze.topic import topic


@dataclass(frozen=True, slots=True)
class Page:
    """The id of a passage, its words as they are measured, what it is about and what it can be asked.

    `shared` is whether its title has another meaning in the corpus.
    """

    id: str
    words: str
    subject: Subject
    drafts: tuple[Draft, ...]
    shared: bool

    @property
    def clear(self) -> bool:
        """Whether its name tells what is meant."""
        return not self.shared or self.subject.topic.name != self.title

    @property
    def title(self) -> str:
        """What the passage is about, without what tells it apart."""
        return self.subject.topic.title


def read(passage: Passage, lexicon: Lexicon) -> Page | None:
    """The page of a passage; None where nothing can be asked of it."""
    about = topic(passage, lexicon)
    if about is None:
        return None
    mine, words = subject(about, lexicon), measured(passage.contents)
    found = tuple(drafts(mine, words, lexicon))
    return Page(passage.id, words, mine, found, about.title in lexicon.ambiguous) if found else None
