"""Prepared questions on disk: our JSONL, the same as Parquet, what was dropped, and a manifest."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sleuth import __version__
from sleuth.corpus import questions, tables
from sleuth.corpus.datasets import search_r1
from sleuth.corpus.datasets.merge import Merged, Reason, Rules, key, merge
from sleuth.corpus.datasets.rows import Row, is_table, read
from sleuth.errors import InputError
from sleuth.runs.atomic import atomic_write, require_new
from sleuth.runs.checksums import fingerprint
from sleuth.runs.json_files import read_json

FORMAT = 1
KIND = "questions"
ROWS, TABLE, DROPPED, MANIFEST = "questions.jsonl", "questions.parquet", "dropped.jsonl", "manifest.json"


@dataclass(frozen=True, slots=True)
class Source:
    """A file of questions, and what its user calls it."""

    name: str
    path: Path


def prepare(
    sources: Sequence[Source],
    out: Path,
    ask: search_r1.Asking,
    *,
    tests: Sequence[Source] = (),
    rules: Rules | None = None,
    split: str = "train",
) -> dict[str, Any]:
    """Writes a new folder, whole or not at all, and returns its manifest; `ask` is the prompt of rows without one."""
    rules = rules or Rules()
    require_new(out)
    tested = {key(row.question.question): row.question.id for source in tests for row in _rows(source)}
    merged = merge((row for source in sources for row in _rows(source)), rules, tested)
    if not merged.rows:
        raise InputError(f"no question is left of {_named(sources)}: {_losses(merged)}; drop less, or give other files")
    with atomic_write(out) as folder:
        folder.mkdir()
        _write_rows(folder / ROWS, merged.rows)
        _write_dropped(folder / DROPPED, merged)
        schema = search_r1.write(folder / TABLE, merged.rows, [_schema(each.path) for each in sources], split, ask)
        manifest = {
            "format": FORMAT,
            "kind": KIND,
            "sleuth": __version__,
            "sources": [_stamp(each) for each in sources],
            "tests": [_stamp(each) for each in tests],
            "split": split,
            "rules": asdict(rules),
            "sets": merged.counts(),
            "files": {name: {"rows": len(merged.rows), "sha256": fingerprint(folder / name)} for name in (ROWS, TABLE)},
            "schema": None if schema is None else tables.packed(schema),
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def _rows(source: Source) -> list[Row]:
    rows = list(read(source.path))
    if not rows:
        raise InputError(f"{source.path} holds no questions; expected one at least")
    return rows


def _schema(path: Path) -> tables.Schema | None:
    """The schema of a Parquet file, or of the one that a prepared JSONL file was made of."""
    if is_table(path):
        return tables.schema(path)
    manifest = path.parent / MANIFEST
    if path.name != ROWS or not manifest.is_file():
        return None
    written = read_json(manifest)
    if written.get("kind") != KIND or written.get("schema") is None:
        return None
    try:
        return tables.unpacked(str(written["schema"]))
    except ValueError as error:
        raise InputError(f"{manifest} is damaged ({error}); prepare the questions again") from error


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            try:
                file.write(questions.line(row.question, row.kept))
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"the row of the question {row.question.id!r} cannot be kept as JSON ({error}); "
                    "leave such columns out of the file"
                ) from error


def _write_dropped(path: Path, merged: Merged) -> None:
    """What was dropped for what it is; the rest over a limit can be had by raising it."""
    with path.open("w", encoding="utf-8") as file:
        for each in merged.dropped:
            if each.reason is not Reason.OVER:
                asked = each.row.question
                said = {"id": asked.id, "data_source": asked.data_source, "question": asked.question}
                same = {"same_as": each.same_as} if each.same_as else {}
                file.write(json.dumps({**said, "reason": each.reason.value, **same}, ensure_ascii=False) + "\n")


def _stamp(source: Source) -> dict[str, str]:
    return {"name": source.name, "file": source.path.name, "sha256": fingerprint(source.path)}


def _named(sources: Sequence[Source]) -> str:
    return ", ".join(source.name for source in sources)


def _losses(merged: Merged) -> str:
    counts = {reason: sum(each.reason is reason for each in merged.dropped) for reason in Reason}
    return ", ".join(f"{count} {reason.value}" for reason, count in counts.items() if count)
