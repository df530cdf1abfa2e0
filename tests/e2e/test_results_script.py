"""What the script behind docs/results.md refuses before it computes anything."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "results" / "run.sh"
PARTS = ("questions.train", "questions.test", "corpus")


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder with what looks like a model, and the three files of a set."""
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).touch()
    (tmp_path / "data").mkdir()
    for part in PARTS:
        (tmp_path / "data" / f"squad.{part}.jsonl.gz").touch()
    return tmp_path


def said(there: Path, row: str = "direct", code: int = 2, **settings: str) -> str:
    """What it says when it leaves with this code."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", str(SCRIPT), row, "model", "data", "out"]
    ended = subprocess.run(
        command, cwd=there, env=os.environ | {"PATH": path} | settings, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == code, ended.stderr
    return ended.stderr


def test_a_row_it_does_not_know(there: Path) -> None:
    assert "unknown row ppo; expected direct, rag, rag-sft, search, cold or rl" in said(there, "ppo")


def test_a_folder_without_a_model(there: Path) -> None:
    (there / "model" / "config.json").unlink()
    assert "model has no config.json" in said(there)


def test_a_setting_that_is_no_number(there: Path) -> None:
    assert "MADE=many is invalid" in said(there, MADE="many")


@pytest.mark.parametrize("part", PARTS)
def test_a_set_that_lacks_a_file(there: Path, part: str) -> None:
    (there / "data" / f"squad.{part}.jsonl.gz").unlink()
    assert f"data has no squad.{part}.jsonl.gz" in said(there)


def test_settings_other_than_those_a_folder_was_made_with(there: Path) -> None:
    (there / "out").mkdir()
    said(there, "search")  # there are no passages to index, and the settings are on record
    assert "out was made with other settings" in said(there, K="5")


def test_rates_matter_to_the_rows_that_are_trained_alone(there: Path) -> None:
    said(there, "cold", RATE="1e-4")
    assert "out was made with other settings" in said(there, "rl", RATE="2e-4")
    assert "other settings" not in said(there, "search", RATE="2e-4")


def test_made_questions_keep_away_from_test_and_validation_pages(there: Path) -> None:
    """Whole commands up to the model, which is none: other passages of the measured pages are not asked about."""
    pages = {
        name: f"{name} is a 1961 film directed by Anna Pell{name}." for name in ("Alder", "Birch", "Cedar", "Doum")
    }
    corpus = [{"id": f"{name}{copy}", "contents": f'"{name}"\n{text}'} for name, text in pages.items() for copy in "12"]
    asked = [
        {
            "id": name,
            "question": f"What of {name}?",
            "golden_answers": ["x"],
            "supporting_ids": [f"{name}1"],
            "answerable": True,
        }
        for name in pages
    ]
    parts: dict[str, list[Any]] = {"corpus": corpus, "questions.train": asked[:3], "questions.test": asked[3:]}
    for part, rows in parts.items():
        with gzip.open(there / "data" / f"squad.{part}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    assert "model/config.json" in said(there, "rag", code=1, VALIDATION="1", MADE="20")
    (validation,) = [json.loads(line) for line in (there / "out" / "validation.jsonl").read_text().splitlines()]
    made = [json.loads(line) for line in (there / "out" / "made.jsonl").read_text().splitlines()]
    measured = {"Doum", validation["id"]}
    assert {name.rstrip("12") for row in made for name in row["supporting_ids"]} == set(pages) - measured
