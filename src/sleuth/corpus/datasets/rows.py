"""Question files of every known format, read as they are."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from dataclasses import fields as names_of
from pathlib import Path
from typing import Any

from sleuth.corpus.datasets import formats
from sleuth.corpus.datasets.lines import lines, parsed
from sleuth.corpus.datasets.origin import folded, strict
from sleuth.errors import InputError
from sleuth.records import Question

EXPECTED = '{"id": "q1", "question": "Who ...?", "golden_answers": ["..."]}'
TABLE = "data_source, prompt and reward_model, as Search-R1 has them, or id, question and golden_answers"
OURS = frozenset(field.name for field in names_of(Question))
BULKY = "metadata"  # FlashRAG's, with whole passages in it
ORIGIN = "row"  # the key of our lines for the row a question was made of
PLAIN_NAMES = frozenset({"train", "dev", "test", "val", "validation"})


@dataclass(frozen=True, slots=True)
class Row:
    """A question, and what else its line says under keys that are not a question's."""

    question: Question
    kept: dict[str, Any]


def read(path: Path) -> Iterator[Row]:
    """The rows of a file in order: JSONL, plain or .gz, or Parquet; the first bad one is an InputError.

    An id that comes twice is an error in files of ours; in others, which count rows in their own ways, it gets a
    number.
    """
    source = source_of(path)
    seen: set[str] = set()
    for place, raw in _raw(path):
        try:
            reading = formats.recognised(raw) or formats.ours
            row = _row(raw, reading, source)
            name = _new(row.question.id, seen, again=reading is not formats.ours)
        except ValueError as error:
            expected = f"expected the columns {TABLE}" if is_table(path) else f"a line looks like {EXPECTED}"
            raise InputError(f"{path}, {place}: {error}; {expected}") from error
        seen.add(name)
        yield row if name == row.question.id else renamed(row, name)


def is_table(path: Path) -> bool:
    """Whether a file is Parquet, by its name."""
    return path.suffix == ".parquet"


def source_of(path: Path) -> str:
    """The set a file is of, where its rows do not say: its name, or its folder's where it is called train or test."""
    name = path.name.partition(".")[0]
    return path.absolute().parent.name if name in PLAIN_NAMES and path.absolute().parent.name else name


def renamed(row: Row, name: str) -> Row:
    """The row with another id."""
    return Row(replace(row.question, id=name), row.kept)


def unused(name: str, taken: set[str]) -> str:
    """The name, with a number where it is taken."""
    if name not in taken:
        return name
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def _new(name: str, seen: set[str], again: bool) -> str:
    if name in seen and not again:
        raise ValueError(f"the id {name!r} stands on an earlier line too; ids must differ")
    return unused(name, seen)


def _row(raw: dict[str, Any], reading: formats.Reading, source: str) -> Row:
    question = reading(raw, source)
    if reading is formats.search_r1:
        return Row(question, {ORIGIN: folded(raw, question)})
    if reading is formats.ours:
        return Row(question, {key: strict(value) for key, value in raw.items() if key not in OURS and key != BULKY})
    return Row(question, {})


def _raw(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The values of each row, and where it stands."""
    if is_table(path):
        yield from _table(path)
        return
    for number, line in enumerate(lines(path), start=1):
        if line.strip():
            try:
                yield f"line {number}", parsed(line)
            except ValueError as error:
                raise InputError(f"{path}, line {number}: {error}; a line looks like {EXPECTED}") from error


def _table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from sleuth.corpus import tables  # pyarrow takes a third of a second, and most files are no Parquet

    if not path.is_file():
        raise InputError(f"the question file {path} does not exist; give a Parquet file of questions")
    names = tables.schema(path).names
    if formats.recognised(names) is None:
        raise InputError(f"{path} has the columns {', '.join(names) or 'of an empty table'}; expected {TABLE}")
    yield from ((f"row {number}", row) for number, row in enumerate(tables.rows(path), start=1))
