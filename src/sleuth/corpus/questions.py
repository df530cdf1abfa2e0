"""Question files: Sleuth's format is one JSON object per line; the formats of other projects are read as well."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sleuth.corpus.jsonl import open_text, parse_question_line, replace_surrogates, text_lines
from sleuth.corpus.question_formats import Reader, find_reader, fold_row, mark_numbers, read_search_r1, read_sleuth
from sleuth.errors import InputError
from sleuth.records import Question
from sleuth.runs.atomic import atomic_write

# Files of a data folder: a generated world, or the data of a run.
CORPUS, TRAIN, TEST = "corpus.jsonl", "questions.train.jsonl", "questions.test.jsonl"
EXPECTED = '{"id": "q1", "question": "Who ...?", "golden_answers": ["..."]}'
COLUMNS = "data_source, prompt and reward_model, as Search-R1 has them, or id, question and golden_answers"
FIELDS = tuple(field.name for field in fields(Question))
METADATA = "metadata"  # FlashRAG column with whole passages; dropped
ORIGIN = "row"  # key of the Search-R1 row from which a question was read
EVIDENCE = "evidence"  # key of the quotes that support a made question: [{"id": passage, "quote": text}, ...]
GENERIC_NAMES = frozenset({"train", "dev", "test", "val", "validation"})


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """A question, and the other entries of its row."""

    question: Question
    extra: dict[str, Any]

    def with_id(self, name: str) -> "QuestionRow":
        return self if name == self.question.id else QuestionRow(replace(self.question, id=name), self.extra)


def stream(path: Path) -> Iterator[Question]:
    """Yield the questions of a file in any known format; raise InputError for the first bad row."""
    return (row.question for row in read_rows(path))


def load(path: Path) -> list[Question]:
    """Return all questions of a file; raise InputError if there are none."""
    questions = list(stream(path))
    if not questions:
        raise InputError(f"{path} holds no questions; expected one JSON object per line, like {EXPECTED}")
    return questions


def write(path: Path, questions: Iterable[Question]) -> int:
    """Write a question file atomically, compressed if named .gz; return the number of questions."""
    return write_rows(path, (QuestionRow(question, {}) for question in questions))


def write_rows(path: Path, rows: Iterable[QuestionRow]) -> int:
    """Like `write`, with the extra entries of each row."""
    count = 0
    with atomic_write(path) as temporary, open_text(temporary, "w") as file:
        for question, extra in ((row.question, row.extra) for row in rows):
            if question.answerable is not False and not any(answer.strip() for answer in question.golden_answers):
                raise InputError(
                    f"the question {question.id!r} has no answer; give it at least one golden answer, or answerable = "
                    "false"
                )
            file.write(encode_line(question, extra))
            count += 1
    return count


def encode_line(question: Question, extra: Mapping[str, Any] | None = None) -> str:
    """Encode a question and extra entries as a line, without unset fields; raise ValueError for NaN and infinities."""
    values = {name: getattr(question, name) for name in FIELDS}
    # An unanswerable question has no answers, but readers know the format by their name.
    known = {
        name: value for name, value in values.items() if name == "golden_answers" or (value is not None and value != ())
    }
    return replace_surrogates(json.dumps({**known, **(extra or {})}, ensure_ascii=False, allow_nan=False)) + "\n"


def read_rows(path: Path) -> Iterator[QuestionRow]:
    """Yield the rows of a JSONL (plain or .gz) or Parquet file; raise InputError for the first bad row.

    A repeated id is an error in Sleuth's format; in other formats it gets a suffix.
    """
    # Set name for rows that have none: the file name, or the folder name if the file is named train, test, ...
    name, parent = path.name.partition(".")[0], path.absolute().parent.name
    source = parent if name in GENERIC_NAMES and parent else name
    seen: set[str] = set()
    for place, values in _read_values(path):
        try:
            reader = find_reader(values) or read_sleuth
            row = _read_row(values, reader, source)
            if row.question.id in seen and reader is read_sleuth:
                raise ValueError(f"the id {row.question.id!r} is also on an earlier line; ids must be unique")
        except ValueError as error:
            expected = f"expected the columns {COLUMNS}" if is_parquet(path) else f"a line looks like {EXPECTED}"
            raise InputError(f"{path}, {place}: {error}; {expected}") from error
        unique = unused_id(row.question.id, seen)
        seen.add(unique)
        yield row.with_id(unique)


def is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet"


def unused_id(name: str, taken: set[str]) -> str:
    """Return the id `name`, with a numeric suffix if it is already in `taken`."""
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


def _read_row(values: dict[str, Any], reader: Reader, source: str) -> QuestionRow:
    question = reader(values, source)
    if reader is read_search_r1:
        return QuestionRow(question, {ORIGIN: fold_row(values, question)})
    if reader is read_sleuth:
        others = {key: value for key, value in values.items() if key not in FIELDS and key != METADATA}
        return QuestionRow(question, {key: mark_numbers(value) for key, value in others.items()})
    return QuestionRow(question, {})


def _read_values(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and the values of each row."""
    if is_parquet(path):
        yield from _read_parquet(path)
        return
    for number, line in enumerate(text_lines(path, "question file"), start=1):
        if line.strip():
            try:
                yield f"line {number}", parse_question_line(line)
            except ValueError as error:
                raise InputError(f"{path}, line {number}: {error}; a line looks like {EXPECTED}") from error


def _read_parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from sleuth.corpus import parquet  # importing pyarrow takes a third of a second

    if not path.is_file():
        raise InputError(f"the question file {path} does not exist; give a Parquet file of questions")
    names = parquet.schema(path).names
    if find_reader(names) is None:
        found = f"has the columns {', '.join(names)}" if names else "has no columns"
        raise InputError(f"{path} {found}; expected {COLUMNS}")
    yield from ((f"row {number}", row) for number, row in enumerate(parquet.rows(path), start=1))
