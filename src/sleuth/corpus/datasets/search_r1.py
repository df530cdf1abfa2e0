"""Questions as the Parquet that Search-R1 and verl train on; rows that came from such a file go back as they were."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sleuth.corpus import tables
from sleuth.corpus.datasets.origin import unfolded
from sleuth.corpus.datasets.rows import ORIGIN, Row
from sleuth.errors import InputError
from sleuth.records import Question

Asking = Callable[[Question], Sequence[dict[str, str]]]

ABILITY = "fact-reasoning"
SCHEMA = tables.columns(
    id=str,
    question=str,
    golden_answers=[str],
    data_source=str,
    prompt=[{"role": str, "content": str}],
    ability=str,
    reward_model={"style": str, "ground_truth": {"target": [str]}},
    extra_info={"split": str, "index": int},
)


def write(
    path: Path, rows: Sequence[Row], schemas: Sequence[tables.Schema | None], split: str, ask: Asking
) -> tables.Schema | None:
    """Writes the rows; returns the schema of the files they came from where they went back under it, else None.

    `schemas` has one entry a file, None where it has none of its own; `ask` is the prompt of a question without one.
    """
    schema = _kept_schema(rows, schemas)
    table = _as_search_r1(rows, split, ask) if schema is None else _as_they_were(rows)
    try:
        tables.write(path, table, SCHEMA if schema is None else schema)
    except ValueError as error:
        raise InputError(f"the rows do not fit the columns of the file they came from ({error})") from error
    return schema


def _kept_schema(rows: Sequence[Row], schemas: Sequence[tables.Schema | None]) -> tables.Schema | None:
    """The schema under which all rows can go back; None where they come from different places."""
    if not all(isinstance(row.kept.get(ORIGIN), dict) for row in rows):
        return None
    if all(schema is None for schema in schemas):
        try:
            return tables.inferred(list(_as_they_were(rows)))
        except ValueError:  # what does not go together is written as Search-R1 has it
            return None
    first = schemas[0]
    same = first is not None and all(schema is not None and first.equals(schema) for schema in schemas)
    return first if same else None


def _as_they_were(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    return (unfolded(row.kept[ORIGIN], row.question) for row in rows)


def _as_search_r1(rows: Sequence[Row], split: str, ask: Asking) -> Iterator[dict[str, Any]]:
    """Search-R1's columns; the index counts the rows of a set, as there."""
    counted: Counter[str] = Counter()
    for row in rows:
        question, origin = row.question, _origin(row)
        place = {"split": split, "index": counted[question.data_source]}
        counted[question.data_source] += 1
        yield {
            "id": question.id,
            "question": question.question,
            "golden_answers": list(question.golden_answers),
            "data_source": _known(origin, "data_source", str, question.data_source),
            "prompt": [_message(each) for each in question.prompt or ask(question)],
            "ability": _known(origin, "ability", str, ABILITY),
            "reward_model": {"style": "rule", "ground_truth": {"target": list(question.golden_answers)}},
            "extra_info": place,
        }


def _origin(row: Row) -> dict[str, Any]:
    origin = row.kept.get(ORIGIN)
    return unfolded(origin, row.question) if isinstance(origin, dict) else {}


def _known(origin: dict[str, Any], name: str, kind: type, otherwise: Any) -> Any:
    value = origin.get(name)
    return value if isinstance(value, kind) else otherwise


def _message(message: dict[str, str]) -> dict[str, str]:
    return {"role": message["role"], "content": message["content"]}
