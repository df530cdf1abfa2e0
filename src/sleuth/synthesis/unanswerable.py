"""Unanswerable questions: their documents are held out of the corpus, and no other document answers them."""

import json
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
    Questions that a remaining passage seems to answer are dropped.
    """
    if not 0 <= share < 1:
        raise InputError(f"the share of unanswerable questions is {share}; expected 0 or more, and less than 1")
    known = PassageMap.of(passages)
    documents = {row.question.id: question_documents(row, known) for row in rows}
    names = sorted({name for found in documents.values() for name in found}, key=lambda name: _order(name, seed))
    held: set[str] = set()
    affected: set[str] = set()
    for name in names:
        if len(affected) >= share * len(rows) or len(held) + 1 >= len(names):
            break
        held.add(name)
        affected |= {question for question, found in documents.items() if name in found}
    remaining = [set(content_words(each.contents)) for each in known.values() if document_of(each) not in held]
    kept, dropped = [], 0
    for row in rows:
        if row.question.id not in affected:
            kept.append(QuestionRow(replace(row.question, answerable=True), row.extra))
        elif any(_answers(words, row) for words in remaining):
            dropped += 1
        else:
            kept.append(QuestionRow(replace(row.question, answerable=False), row.extra))
    return HeldOut(frozenset(held), tuple(kept), dropped)


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


def _answers(words: set[str], row: QuestionRow) -> bool:
    """Whether a passage with these words has the answer and most words of the question."""
    answer = set(content_words(row.question.golden_answers[0]))
    if not answer or not words >= answer:
        return False
    asked = set(content_words(row.question.question))
    return len(asked & words) >= STATED_ELSEWHERE * len(asked)


def _order(name: str, seed: int) -> bytes:
    return blake2b(f"held out {seed}:{name}".encode(), digest_size=8).digest()
