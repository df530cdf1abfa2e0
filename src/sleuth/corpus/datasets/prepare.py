"""Prepared question folders: questions as JSONL, and as Parquet for Search-R1 and verl; drops and a manifest."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sleuth import __version__
from sleuth.corpus import parquet
from sleuth.corpus.datasets.merge import DropReason, Merged, MergeRules, merge, question_key
from sleuth.corpus.question_formats import unfold_row
from sleuth.corpus.questions import ORIGIN, QuestionRow, encode_line, is_parquet, read_rows
from sleuth.errors import InputError
from sleuth.records import Question
from sleuth.runs.atomic import atomic_write, require_new
from sleuth.runs.checksums import fingerprint
from sleuth.runs.json_files import read_json

FORMAT = 1
KIND = "questions"
ROWS, TABLE, DROPPED, MANIFEST = "questions.jsonl", "questions.parquet", "dropped.jsonl", "manifest.json"
ABILITY = "fact-reasoning"

MakePrompt = Callable[[Question], Sequence[dict[str, str]]]


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """A question file, and the name under which the user gave it."""

    name: str
    path: Path

    def stamp(self) -> dict[str, str]:
        return {"name": self.name, "file": self.path.name, "sha256": fingerprint(self.path)}

    def read(self) -> list[QuestionRow]:
        rows = list(read_rows(self.path))
        if not rows:
            raise InputError(f"{self.path} holds no questions; expected at least one")
        return rows


def prepare(
    sources: Sequence[QuestionSource],
    out: Path,
    make_prompt: MakePrompt,
    *,
    tests: Sequence[QuestionSource] = (),
    rules: MergeRules | None = None,
    split: str = "train",
) -> dict[str, Any]:
    """Write a new folder atomically and return its manifest; `make_prompt` creates the prompts of rows without one."""
    rules = rules or MergeRules()
    require_new(out)
    tested = {question_key(row.question.question): row.question.id for source in tests for row in source.read()}
    merged = merge((row for source in sources for row in source.read()), rules, tested)
    if not merged.rows:
        names = ", ".join(source.name for source in sources)
        lost = Counter(each.reason for each in merged.dropped)
        listed = ", ".join(f"{lost[reason]} {reason.value}" for reason in DropReason if lost[reason])
        raise InputError(f"every question of {names} was dropped: {listed}; relax the filters, or give other files")
    with atomic_write(out) as folder:
        folder.mkdir()
        _write_rows(folder / ROWS, merged.rows)
        _write_dropped(folder / DROPPED, merged)
        schemas = [_source_schema(source.path) for source in sources]
        schema = _write_table(folder / TABLE, merged.rows, schemas, split, make_prompt)
        manifest = {
            "format": FORMAT,
            "kind": KIND,
            "sleuth": __version__,
            "sources": [source.stamp() for source in sources],
            "tests": [source.stamp() for source in tests],
            "split": split,
            "rules": asdict(rules),
            "sets": merged.counts(),
            "files": {name: {"rows": len(merged.rows), "sha256": fingerprint(folder / name)} for name in (ROWS, TABLE)},
            "schema": None if schema is None else parquet.encode_schema(schema),
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def _source_schema(path: Path) -> parquet.Schema | None:
    """Return the schema of a Parquet file, or of the Parquet source of a prepared JSONL file."""
    if is_parquet(path):
        return parquet.schema(path)
    manifest = path.parent / MANIFEST
    if path.name != ROWS or not manifest.is_file():
        return None
    written = read_json(manifest)
    if written.get("kind") != KIND or written.get("schema") is None:
        return None
    try:
        return parquet.decode_schema(str(written["schema"]))
    except ValueError as error:
        raise InputError(f"{manifest} is damaged ({error}); prepare the questions again") from error


def _write_rows(path: Path, rows: Sequence[QuestionRow]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            try:
                file.write(encode_line(row.question, row.extra))
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"the row of the question {row.question.id!r} cannot be written as JSON ({error}); "
                    "leave such columns out of the file"
                ) from error


def _write_dropped(path: Path, merged: Merged) -> None:
    """Write the dropped questions, except those dropped because of the limit."""
    with path.open("w", encoding="utf-8") as file:
        for each in merged.dropped:
            if each.reason is not DropReason.OVER_LIMIT:
                question = each.row.question
                row = {"id": question.id, "data_source": question.data_source, "question": question.question}
                same = {"same_as": each.same_as} if each.same_as else {}
                file.write(json.dumps({**row, "reason": each.reason.value, **same}, ensure_ascii=False) + "\n")


def _write_table(
    path: Path, rows: Sequence[QuestionRow], schemas: Sequence[parquet.Schema | None], split: str, prompt: MakePrompt
) -> parquet.Schema | None:
    """Write the rows as Parquet; return the schema of the source files if the rows fit it, else None."""
    schema = _original_schema(rows, schemas)
    table = _search_r1_rows(rows, split, prompt) if schema is None else _original_rows(rows)
    try:
        parquet.write(path, table, parquet.SEARCH_R1_SCHEMA if schema is None else schema)
    except ValueError as error:
        raise InputError(f"the rows do not fit the columns of the file they came from ({error})") from error
    return schema


def _original_schema(rows: Sequence[QuestionRow], schemas: Sequence[parquet.Schema | None]) -> parquet.Schema | None:
    """Return the schema with which all rows can be written back; None if their formats differ."""
    if not all(isinstance(row.extra.get(ORIGIN), dict) for row in rows):
        return None
    if all(schema is None for schema in schemas):
        try:
            return parquet.infer_schema(list(_original_rows(rows)))
        except ValueError:  # types conflict
            return None
    first = schemas[0]
    same = first is not None and all(schema is not None and first.equals(schema) for schema in schemas)
    return first if same else None


def _original_rows(rows: Sequence[QuestionRow]) -> Iterator[dict[str, Any]]:
    return (unfold_row(row.extra[ORIGIN], row.question) for row in rows)


def _search_r1_rows(rows: Sequence[QuestionRow], split: str, prompt: MakePrompt) -> Iterator[dict[str, Any]]:
    """Yield rows with the columns of Search-R1; the index counts the rows of each set."""
    counted: Counter[str] = Counter()
    for row in rows:
        question, kept = row.question, row.extra.get(ORIGIN)
        origin = unfold_row(kept, question) if isinstance(kept, dict) else {}
        source, ability = (origin.get(name) for name in ("data_source", "ability"))
        messages = [{"role": each["role"], "content": each["content"]} for each in question.prompt or prompt(question)]
        yield {
            "id": question.id,
            "question": question.question,
            "golden_answers": list(question.golden_answers),
            "data_source": source if isinstance(source, str) else question.data_source,
            "prompt": messages,
            "ability": ability if isinstance(ability, str) else ABILITY,
            "reward_model": {"style": "rule", "ground_truth": {"target": list(question.golden_answers)}},
            "extra_info": {"split": split, "index": counted[question.data_source]},
        }
        counted[question.data_source] += 1
