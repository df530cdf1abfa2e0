"""The questions that were taken: each once, each passage so often, yes as often as no."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from sleuth.corpus.datasets.merge import key
from sleuth.records import Question
from sleuth.synthesis.cloze.drafts import Draft, typed
from sleuth.synthesis.cloze.excluded import answer_key
from sleuth.synthesis.cloze.pages import Page

EITHER = {"yes": "no", "no": "yes"}
JOINED = 3  # times as often as alone, a passage is joined with others
AHEAD = 3  # how many more times one of yes and no may have been the answer


@dataclass(slots=True)
class Ledger:
    """Keeps questions of a set by `name`; `asked` are those that must not be asked, as `key` writes them.

    `measured` are answers that must not be asked for, as `answer_key` writes them.
    """

    name: str
    per_passage: int
    asked: set[str]
    dice: Random
    measured: frozenset[str] = frozenset()
    refused: int = 0  # questions that would have asked for one of these
    wordings: int = 1  # how often the same may be asked for, in other words
    questions: list[Question] = field(default_factory=list)
    _alone: Counter[str] = field(default_factory=Counter)
    _joined: Counter[str] = field(default_factory=Counter)
    _answers: Counter[str] = field(default_factory=Counter)
    _known: Counter[tuple[tuple[str, ...], str]] = field(default_factory=Counter)

    def full(self, page: Page) -> bool:
        """Whether a passage was asked about alone as often as it may be."""
        return self._alone[page.id] >= self.per_passage

    def taken(self, page: Page) -> bool:
        """Whether a passage was joined with others as often as it may be."""
        return self._joined[page.id] >= JOINED * self.per_passage

    def alone(self, page: Page, text: str, draft: Draft) -> bool:
        """Keeps a question about one passage, unless that was asked for before."""
        if not self._take(text, draft.answers, (page.id,), draft.kind.value):
            return False
        self._alone[page.id] += 1
        return True

    def joined(
        self, about: Sequence[Page], pages: Sequence[Page], text: str, answers: tuple[str, ...], sort: str
    ) -> bool:
        """Keeps a question over several passages, unless those that it is about were joined often enough."""
        if any(map(self.taken, about)) or self._leans(answers[0]):
            return False
        if not self._take(text, answers, tuple(page.id for page in pages), sort):
            return False
        self._joined.update(page.id for page in about)
        self._answers[answers[0]] += answers[0] in EITHER
        return True

    def _leans(self, answer: str) -> bool:
        """Whether yes, or no, was the answer too often already."""
        other = EITHER.get(answer)
        return other is not None and self._answers[answer] >= self._answers[other] + AHEAD

    def _take(self, text: str, answers: tuple[str, ...], ids: tuple[str, ...], sort: str) -> bool:
        asked, known = key(text), (ids, answers[0])
        if asked in self.asked or self._known[known] >= self.wordings:
            return False
        if self.measured and any(answer_key(answer) in self.measured for answer in answers):
            self.refused += 1
            return False
        self.asked.add(asked)
        self._known[known] += 1
        name = f"{self.name}_{len(self.questions)}"
        written = typed(text, self.dice)
        self.questions.append(Question(name, written, answers, self.name, ids, sort, len(ids)))
        return True
