"""Questions drawn from a corpus by seed: which passages are asked about, and which of their questions are taken."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Protocol

from sleuth.corpus.cloze.bridges import bridges, crossed
from sleuth.corpus.cloze.drafts import Draft, styled
from sleuth.corpus.cloze.excluded import Excluded
from sleuth.corpus.cloze.lexicon import Lexicon
from sleuth.corpus.cloze.questioner import chosen, drafts
from sleuth.corpus.cloze.topic import Topic, topic
from sleuth.corpus.datasets.merge import key
from sleuth.corpus.progress import Progress, silent
from sleuth.records import Passage, Question

LEARNED = 300_000  # passages whose titles are known; more would take memory, and few of them meet
TWO_HOPS = 0.25
TRIES = 4  # of a passage whose first draft was asked before
TOO_COMMON = 8  # passages of one title: beyond that it says little
READ_AGAIN = 60_000  # passages whose drafts are kept


class Passages(Protocol):
    """Passages by row."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Passage: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What is wanted: `questions` at most, `per_passage` about one passage, some of two hops."""

    questions: int
    seed: int = 0
    per_passage: int = 1
    name: str = "cloze"
    two_hops: float = TWO_HOPS


@dataclass(slots=True)
class Made:
    """The questions, and what became of the passages."""

    questions: list[Question] = field(default_factory=list)
    passages: int = 0
    excluded: int = 0
    used: Counter[str] = field(default_factory=Counter)

    @property
    def kinds(self) -> Counter[str]:
        """How many questions ask for each kind of answer."""
        return Counter(str(question.type) for question in self.questions)

    @property
    def two_hops(self) -> int:
        """How many questions take two passages."""
        return sum(question.hops == 2 for question in self.questions)


def make(corpus: Passages, terms: Terms, without: Excluded | None = None, progress: Progress = silent) -> Made:
    """Questions about passages in an order drawn by seed; every passage is asked about once before any is again."""
    return _Making(corpus, terms, without or Excluded(), progress).made()


class _Making:
    def __init__(self, corpus: Passages, terms: Terms, without: Excluded, progress: Progress) -> None:
        self._corpus, self._terms, self._without, self._progress = corpus, terms, without, progress
        self._dice = Random(terms.seed)
        self._made = Made(passages=len(corpus))
        self._asked: set[str] = set(without.questions)
        self._order = self._dice.sample(range(len(corpus)), len(corpus))
        self._lexicon = Lexicon.learned(self._learned(self._order[:LEARNED]))
        self._drafts = lru_cache(READ_AGAIN)(self._read)

    def made(self) -> Made:
        """Two hops first: a passage that is reached by one must not have been asked about already."""
        made, wanted = self._made, self._terms.questions
        self._until(round(wanted * self._terms.two_hops), self._cross, "joining passages")
        for _ in range(self._terms.per_passage):
            self._until(wanted, self._ask, "making questions")
        self._dice.shuffle(made.questions)
        made.questions = [
            replace(question, id=f"{self._terms.name}_{place}") for place, question in enumerate(made.questions)
        ]
        return made

    def _until(self, wanted: int, question: Callable[[Topic, list[Draft]], bool], stage: str) -> None:
        """Goes through the passages until there are so many questions; how far it is, is told in passages."""
        for place, row in enumerate(self._order):
            if len(self._made.questions) >= wanted:
                return
            about, among = self._drafts(row)
            if about is not None and among:
                question(about, among)
            if place % 1000 == 0:
                self._progress(stage, place, len(self._order))

    def _learned(self, rows: Sequence[int]) -> Iterator[tuple[int, Passage]]:
        """The passages that may be used; what those left out say is not learned either."""
        for place, row in enumerate(rows):
            passage = self._corpus[row]
            if place % 1000 == 0:
                self._progress("reading titles", place, len(rows))
            if passage.id in self._without.passages:
                self._made.excluded += 1
            else:
                yield row, passage

    def _ask(self, about: Topic, among: list[Draft]) -> bool:
        """One more question about a passage."""
        if self._made.used[about.passage.id] >= self._terms.per_passage:
            return False
        return any(self._take(chosen(among, self._dice), (about.passage.id,)) for _ in range(TRIES))

    def _cross(self, first: Topic, among: list[Draft]) -> bool:
        over = list(bridges(among, self._lexicon))
        self._dice.shuffle(over)
        for bridge in over[:TRIES]:
            for row in bridge.rows[:TOO_COMMON]:
                second, further = self._drafts(row)
                if second is None or second.passage.id == first.passage.id:
                    continue
                if self._made.used[second.passage.id] >= self._terms.per_passage:
                    continue
                draft = crossed(bridge, first, second, further, self._dice)
                if draft and self._take(draft, (first.passage.id, second.passage.id)):
                    return True
        return False

    def _take(self, draft: Draft, ids: tuple[str, ...]) -> bool:
        """Keeps a question unless it was asked before, here or in what is left out."""
        asked = key(draft.text)
        if asked in self._asked:
            return False
        self._asked.add(asked)
        self._made.used[ids[-1]] += 1
        worded = styled(draft, self._dice)
        name = f"{self._terms.name}_{len(self._made.questions)}"
        self._made.questions.append(
            Question(name, worded.text, draft.answers, self._terms.name, ids, draft.kind.value, len(ids))
        )
        return True

    def _read(self, row: int) -> tuple[Topic | None, list[Draft]]:
        passage = self._corpus[row]
        about = None if passage.id in self._without.passages else topic(passage, self._lexicon)
        return about, drafts(about, self._lexicon) if about else []
