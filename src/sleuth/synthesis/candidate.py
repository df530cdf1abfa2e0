"""A question candidate: question, answer, and the quotes that support it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sleuth.corpus.questions import EVIDENCE, QuestionRow
from sleuth.records import Passage, Question

SEARCH_RANK = "search_rank"  # extra entry: worst rank of an evidence passage, counted from 1; null if not found
DIFFICULTY = "difficulty"  # extra entry: failure rate of the untrained agent


@dataclass(frozen=True, slots=True)
class Evidence:
    """A quote and the passage it comes from."""

    passage: Passage
    quote: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question with its answers, the first of which is the main one; `extra` is kept in the question file."""

    question: str
    answers: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    kind: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answer(self) -> str:
        return self.answers[0]

    def row(self, name: str, number: int) -> QuestionRow:
        """Return the question of the set `name` with the id NAME_NUMBER; the evidence is an extra entry."""
        ids = tuple(dict.fromkeys(each.passage.id for each in self.evidence))
        question = Question(
            f"{name}_{number}", self.question, self.answers, name, ids, self.kind, len(ids), answerable=True
        )
        quotes = [{"id": each.passage.id, "quote": each.quote} for each in self.evidence]
        return QuestionRow(question, {EVIDENCE: quotes, **self.extra})


def with_difficulty(row: QuestionRow, success_rate: float) -> QuestionRow:
    """Record how often the untrained agent fails at a question: 0 is easy, 1 was never answered correctly."""
    return QuestionRow(row.question, {**row.extra, DIFFICULTY: round(1 - success_rate, 4)})
