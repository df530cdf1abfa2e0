"""Splits of questions by document: no document contributes questions to two parts."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from sleuth.corpus.questions import QuestionRow
from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.synthesis.documents import document_of

TOLERANCE = 0.1  # by which a part may exceed its fraction


class PassageFinder(Protocol):
    """Passages by id, such as a PassageStore."""

    def find(self, name: str, /) -> Passage | None: ...


class PassageMap(dict[str, Passage]):
    """Passages in memory, by id."""

    @classmethod
    def of(cls, passages: Iterable[Passage]) -> "PassageMap":
        return cls((passage.id, passage) for passage in passages)

    def find(self, name: str) -> Passage | None:
        return self.get(name)


def split_by_document(
    rows: Sequence[QuestionRow], passages: PassageFinder, fractions: Mapping[str, float], seed: int
) -> dict[str, list[QuestionRow]]:
    """Split questions into named parts of about these fractions; the documents of a question stay together.

    A question of several documents joins them, so that all questions about any of them are in one part. Unanswerable
    questions are divided in the same fractions. The split depends on the seed and the documents only. Raises InputError
    for a passage that is not in the corpus.
    """
    if not fractions or any(share <= 0 for share in fractions.values()) or abs(sum(fractions.values()) - 1) > 1e-6:
        raise InputError(f"the fractions are {dict(fractions)}; expected positive numbers that add up to 1")
    groups: dict[str, list[QuestionRow]] = defaultdict(list)
    joined = _Components()
    for row in rows:
        documents = question_documents(row, passages)
        joined.join(documents)
        groups[documents[0]].append(row)
    components: dict[str, list[QuestionRow]] = defaultdict(list)
    for document, found in groups.items():
        components[joined.root(document)] += found
    parts: dict[str, list[QuestionRow]] = {name: [] for name in fractions}
    with_unanswerable = {name for name, found in components.items() if any(map(_is_unanswerable, found))}
    # Documents with unanswerable questions first, because they are few and would gather in one part.
    for chosen, counts in (
        (with_unanswerable, [_is_unanswerable, _is_any]),
        (components.keys() - with_unanswerable, [_is_any]),
    ):
        ordered = sorted(chosen, key=lambda name: _order(name, seed))
        measures = [(each, sum(map(each, rows))) for each in counts]
        _distribute([components[name] for name in ordered], parts, fractions, measures)
    return parts


def _distribute(
    components: Sequence[Sequence[QuestionRow]],
    parts: Mapping[str, list[QuestionRow]],
    fractions: Mapping[str, float],
    measures: Sequence[tuple[Callable[[QuestionRow], bool], int]],
) -> None:
    """Add each component to a part, so that parts get about their fractions of the total of each measure."""
    for found in components:
        fitting = list(fractions)
        for counts, total in measures:
            size, filled = sum(map(counts, found)), {name: sum(map(counts, part)) for name, part in parts.items()}
            room = {name: share * total - filled[name] for name, share in fractions.items()}
            fitting = [name for name in fitting if size <= room[name] + TOLERANCE * fractions[name] * total]
        # The emptiest part that has room; a component too large for all goes where most is missing.
        counts, _ = measures[0]
        chosen = (
            min(fitting, key=lambda name: sum(map(counts, parts[name])) / fractions[name])
            if fitting
            else max(room, key=lambda name: room[name])
        )
        parts[chosen] += found


def _is_unanswerable(row: QuestionRow) -> bool:
    return row.question.answerable is False


def _is_any(_: QuestionRow) -> bool:
    return True


def question_documents(row: QuestionRow, passages: PassageFinder) -> tuple[str, ...]:
    """Return the documents of a question; raise InputError if it has no passages, or one is not in the corpus."""
    question = row.question
    if not question.supporting_ids:
        raise InputError(f"the question {question.id!r} lists no supporting_ids; give questions made from a corpus")
    found = []
    for name in question.supporting_ids:
        passage = passages.find(name)
        if passage is None:
            raise InputError(f"the passage {name!r} of the question {question.id!r} is not in the corpus; give its own")
        found.append(document_of(passage))
    return tuple(dict.fromkeys(found))


class _Components:
    """Documents joined by questions: union-find with the smallest name as root, so that order does not matter."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def root(self, name: str) -> str:
        while (parent := self._parents.get(name, name)) != name:
            name = parent
        return name

    def join(self, names: Sequence[str]) -> None:
        roots = sorted({self.root(name) for name in names})
        for root in roots[1:]:
            self._parents[root] = roots[0]


def _order(name: str, seed: int) -> bytes:
    return blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
