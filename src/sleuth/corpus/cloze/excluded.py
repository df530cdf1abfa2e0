"""What must not be asked about: the passages and the questions of sets that are measured on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sleuth.corpus.datasets.merge import key
from sleuth.corpus.datasets.rows import read
from sleuth.errors import InputError

NAMING = ("weak_ids", "related_ids")  # beside supporting_ids, in files of ours


@dataclass(frozen=True, slots=True)
class Excluded:
    """Ids of passages, and questions as `key` writes them."""

    passages: frozenset[str] = frozenset()
    questions: frozenset[str] = frozenset()


def excluded(files: Sequence[Path]) -> Excluded:
    """The passages that the questions of files name, and those questions; a file without any is an InputError."""
    passages: set[str] = set()
    questions: set[str] = set()
    for path in files:
        count = len(questions)
        for row in read(path):
            questions.add(key(row.question.question))
            named = [row.question.supporting_ids, *(row.kept.get(name) for name in NAMING)]
            passages.update(str(each) for ids in named if isinstance(ids, list | tuple) for each in ids)
        if len(questions) == count:
            raise InputError(f"{path} holds no questions that earlier files do not, so --without it has no effect")
    return Excluded(frozenset(passages), frozenset(questions))
