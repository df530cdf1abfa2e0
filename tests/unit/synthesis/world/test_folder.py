import hashlib
import json
from pathlib import Path

import pytest

from sleuth.corpus import questions
from sleuth.errors import InputError
from sleuth.synthesis.world.census import SPLITS
from sleuth.synthesis.world.folder import write
from sleuth.synthesis.world.world import World


def test_the_folder_holds_what_the_world_says(tmp_path: Path) -> None:
    world, folder = World(200, 3), tmp_path / "new" / "world"
    rows = 0

    def advanced() -> None:
        nonlocal rows
        rows += 1

    manifest = write(world, folder, train=60, test=20, advanced=advanced)
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    assert corpus == [{"id": passage.id, "contents": passage.contents} for passage in world.passages()]
    for split, count in zip(SPLITS, (60, 20), strict=True):
        expected = [posed.question for posed in world.pose(split, count)]
        assert questions.load(folder / f"questions.{split}.jsonl") == expected
    assert rows == 280
    assert manifest == json.loads((folder / "manifest.json").read_text())
    assert (manifest["format"], manifest["passages"], manifest["seed"]) == (1, 200, 3)
    for name, file in manifest["files"].items():
        assert file["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_the_same_world_is_the_same_bytes(tmp_path: Path) -> None:
    assert write(World(150, 1), tmp_path / "a", 30, 10) == write(World(150, 1), tmp_path / "b", 30, 10)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write(World(100, 0), tmp_path, 10, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_nothing_is_left_when_the_questions_run_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="make a larger world"):
        write(World(100, 0), tmp_path / "world", 10, 5000)
    assert list(tmp_path.iterdir()) == []
