"""What the script behind docs/results.md refuses before it computes anything."""

import os
import subprocess
import sys
from pathlib import Path

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


def said(there: Path, row: str = "direct", **settings: str) -> str:
    """What it says when it leaves with code 2."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", str(SCRIPT), row, "model", "data", "out"]
    ended = subprocess.run(
        command, cwd=there, env=os.environ | {"PATH": path} | settings, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


def test_a_row_it_does_not_know(there: Path) -> None:
    assert "unknown row ppo; expected direct, rag, rag-sft, search, cold or rl" in said(there, "ppo")


def test_a_folder_without_a_model(there: Path) -> None:
    (there / "model" / "config.json").unlink()
    assert "model holds no config.json" in said(there)


def test_a_setting_that_is_no_number(there: Path) -> None:
    assert "MADE=many; expected a whole number" in said(there, MADE="many")


@pytest.mark.parametrize("part", PARTS)
def test_a_set_that_lacks_a_file(there: Path, part: str) -> None:
    (there / "data" / f"squad.{part}.jsonl.gz").unlink()
    assert f"data holds no squad.{part}.jsonl.gz" in said(there)


def test_settings_other_than_those_a_folder_was_made_with(there: Path) -> None:
    (there / "out").mkdir()
    said(there, "search")  # there are no passages to index, and the settings are on record
    assert "out was made with other settings" in said(there, K="5")


def test_rates_matter_to_the_rows_that_are_trained_alone(there: Path) -> None:
    said(there, "cold", RATE="1e-4")
    assert "out was made with other settings" in said(there, "rl", RATE="2e-4")
    assert "other settings" not in said(there, "search", RATE="2e-4")
