import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sleuth.cli import data
from sleuth.errors import InputError

runner = CliRunner()


def test_make_writes_the_folder_and_prints_paths_and_counts(tmp_path: Path) -> None:
    out = tmp_path / "w"
    sizes = ["--passages", "120", "--seed", "4", "--train", "30", "--test", "15"]
    result = runner.invoke(data.world_app, ["make", "--out", str(out), *sizes])
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    names = ["corpus.jsonl", "questions.train.jsonl", "questions.test.jsonl"]
    assert lines[:3] == [[count, str(out / name)] for count, name in zip(["120", "30", "15"], names, strict=True)]
    assert json.loads((out / "manifest.json").read_text())["seed"] == 4


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    on_terminal = runner.invoke(data.world_app, ["make", "--out", str(tmp_path / "w")], env={"FORCE_COLOR": "1"})
    assert "writing" in on_terminal.stderr
    assert runner.invoke(data.world_app, ["make", "--out", str(tmp_path / "v")]).stderr == ""


def test_an_existing_folder_is_an_input_error(tmp_path: Path) -> None:
    result = runner.invoke(data.world_app, ["make", "--out", str(tmp_path)])
    assert isinstance(result.exception, InputError)


@pytest.mark.parametrize("option", [["--passages", "99"], ["--passages", "1000001"], ["--test", "0"], ["--seed", "-1"]])
def test_values_out_of_range_exit_with_2(tmp_path: Path, option: list[str]) -> None:
    assert runner.invoke(data.world_app, ["make", "--out", str(tmp_path / "w"), *option]).exit_code == 2
    assert not (tmp_path / "w").exists()


def test_importing_the_command_loads_no_heavy_library() -> None:
    code = "import sys, sleuth.cli.data; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
