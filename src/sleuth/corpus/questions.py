"""Question files: ours is one JSON object a line, in the format of version 1; those of other projects are read too."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sleuth.corpus.datasets.lines import clean, opened
from sleuth.corpus.datasets.rows import EXPECTED, read
from sleuth.errors import InputError
from sleuth.records import Question
from sleuth.runs.atomic import atomic_write

NAMES = tuple(field.name for field in fields(Question))


def stream(path: Path) -> Iterator[Question]:
    """The questions of a file in order, whatever known format it has; the first bad row is an InputError."""
    return (row.question for row in read(path))


def load(path: Path) -> list[Question]:
    """All questions of a file; there must be one at least."""
    questions = list(stream(path))
    if not questions:
        raise InputError(f"{path} holds no questions; expected one JSON object a line, like {EXPECTED}")
    return questions


def write(path: Path, questions: Iterable[Question]) -> int:
    """Writes a question file, whole or not at all, compressed where its name ends in .gz; returns how many."""
    count = 0
    with atomic_write(path) as temporary, opened(temporary, "w") as file:
        for question in questions:
            if not any(answer.strip() for answer in question.golden_answers):
                raise InputError(f"the question {question.id!r} has no answer; give it one golden answer at least")
            file.write(line(question))
            count += 1
    return count


def line(question: Question, kept: Mapping[str, Any] | None = None) -> str:
    """A question as a line of its file, with what is kept beside it; what is not known of it is left out.

    It is strict JSON: a number that is none is a ValueError.
    """
    values = {name: getattr(question, name) for name in NAMES}
    known = {name: value for name, value in values.items() if value is not None and value != ()}
    return clean(json.dumps({**known, **(kept or {})}, ensure_ascii=False, allow_nan=False)) + "\n"
