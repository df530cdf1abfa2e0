"""Unanswerable questions: their documents are held out of the corpus, and no other document answers them."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from sleuth.corpus.questions import QuestionRow
from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.runs.atomic import atomic_write
from sleuth.synthesis.documents import document_of
from sleuth.synthesis.splits import PassageMap, question_documents
from sleuth.synthesis.vocabulary import content_words

STATED_ELSEWHERE = 0.6  # share of the question's words in another passage with the answer, from which it answers


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out documents, all questions with `answerable` set, and the number that other documents still answer."""

    documents: frozenset[str]
    rows: tuple[QuestionRow, ...]
    dropped: int


def hold_out_documents(rows: Sequence[QuestionRow], passages: Iterable[Passage], share: float, seed: int) -> HeldOut:
    """Hold out documents until about `share` of the questions are unanswerable; deterministic for a seed.

    Golden answers are kept for reference. A question of several documents is unanswerable if one of them is held out.
    Questions of held-out documents that another document seems to answer are dropped.
    """
    if not 0 <= share < 1:
        raise InputError(f"the share of unanswerable questions is {share}; expected 0 or more, and less than 1")
    known = PassageMap.of(passages)
    statements = _Statements(known)
    questions: dict[str, list[QuestionRow]] = defaultdict(list)
    for row in rows:
        for name in question_documents(row, known):
            questions[name].append(row)
    held: set[str] = set()
    marked: dict[str, bool] = {}  # whether a question of a held-out document is unanswerable
    for name in sorted(questions, key=lambda name: _order(name, seed))[:-1]:
        if sum(marked.values()) >= share * len(rows):
            break
        held.add(name)
        for row in questions[name]:
            own = frozenset(question_documents(row, known))
            marked[row.question.id] = not statements.answers(row, own)
    kept = [
        QuestionRow(replace(row.question, answerable=row.question.id not in marked), row.extra)
        for row in rows
        if marked.get(row.question.id, True)
    ]
    return HeldOut(frozenset(held), tuple(kept), len(rows) - len(kept))


class _Statements:
    """The words of all passages, to find passages that may answer a question."""

    def __init__(self, passages: PassageMap) -> None:
        self._documents = [document_of(passage) for passage in passages.values()]
        self._words = [frozenset(content_words(passage.contents)) for passage in passages.values()]
        self._places: dict[str, set[int]] = defaultdict(set)
        for place, words in enumerate(self._words):
            for word in words:
                self._places[word].add(place)

    def answers(self, row: QuestionRow, own: frozenset[str]) -> bool:
        """Whether a passage of another document has the answer and most words of the question."""
        answer = content_words(row.question.golden_answers[0])
        asked = frozenset(content_words(row.question.question))
        if not answer:
            return False
        places = set.intersection(*(self._places[word] for word in answer))
        return any(
            self._documents[place] not in own and len(asked & self._words[place]) >= STATED_ELSEWHERE * len(asked)
            for place in places
        )


def write_remaining(passages: Iterable[Passage], held_out: frozenset[str], path: Path) -> int:
    """Write the passages whose documents are not held out as a corpus; return their number."""
    count = 0
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for passage in passages:
            if document_of(passage) not in held_out:
                row = {"id": passage.id, "contents": passage.contents, **passage.extra}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
    return count


def _order(name: str, seed: int) -> bytes:
    return blake2b(f"held out {seed}:{name}".encode(), digest_size=8).digest()
