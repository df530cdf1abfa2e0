"""A world written to disk: corpus, questions, and a manifest that names what made them."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sleuth import __version__
from sleuth.corpus import questions
from sleuth.errors import InputError
from sleuth.records import Passage, Question
from sleuth.runs.provenance import fingerprint
from sleuth.runs.replacing import replacing
from sleuth.synthesis.world.census import Split
from sleuth.synthesis.world.world import World

FORMAT = 1
CORPUS, TRAIN, TEST = "corpus.jsonl", "questions.train.jsonl", "questions.test.jsonl"

Row = TypeVar("Row")


def write(
    world: World, folder: Path, train: int, test: int, advanced: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Writes a new folder, whole or not at all, calling `advanced` after each row; returns its manifest."""
    if folder.exists():
        raise InputError(f"{folder} exists already and is left as it is; choose another folder")
    with replacing(folder) as temporary:
        temporary.mkdir()
        rows = {
            CORPUS: _write_corpus(temporary / CORPUS, _counted(world.passages(), advanced)),
            TRAIN: questions.write(temporary / TRAIN, _counted(_asked(world, "train", train), advanced)),
            TEST: questions.write(temporary / TEST, _counted(_asked(world, "test", test), advanced)),
        }
        manifest = _manifest(world, temporary, rows)
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def _manifest(world: World, folder: Path, rows: dict[str, int]) -> dict[str, Any]:
    files = {name: {"rows": count, "sha256": fingerprint(folder / name)} for name, count in rows.items()}
    made_by = {"format": FORMAT, "kind": "world", "sleuth": __version__}
    return {**made_by, "passages": len(world), "seed": world.seed, "files": files}


def _asked(world: World, split: Split, count: int) -> Iterator[Question]:
    return (posed.question for posed in world.pose(split, count))


def _write_corpus(path: Path, passages: Iterable[Passage]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for passage in passages:
            row = {"id": passage.id, "contents": passage.contents}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _counted(rows: Iterable[Row], advanced: Callable[[], object]) -> Iterator[Row]:
    for row in rows:
        yield row
        advanced()
