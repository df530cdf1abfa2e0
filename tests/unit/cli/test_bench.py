"""The command that measures generation: what it takes, what it prints, what it refuses."""

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig
from typer.testing import CliRunner

from sleuth.cli.bench import app
from sleuth.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    ).save_pretrained(tmp_path / "small")
    return tmp_path / "small"


def run(*words: str | Path) -> str:
    outcome = CliRunner().invoke(app, ["engine", *(str(word) for word in words)], env={"COLUMNS": "200"})
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    assert outcome.exit_code == 0
    return outcome.stdout


def test_a_table_and_every_repetition(folder: Path, tmp_path: Path) -> None:
    sizes = ["--prompt-tokens", "5", "--new-tokens", "3", "--observation-tokens", "4", "--group", "2"]
    chosen = ["--workload", "turns", "--workload", "single", "--concurrent", "3", "--repetitions", "2"]
    printed = run("--model", folder, *sizes, *chosen, "--peer", "none", "--json", tmp_path / "all.json")
    assert "5 prompt and 3 new tokens, groups of 2, 4 tokens observed between turns" in printed
    lines = [line.split(" | ") for line in printed.splitlines() if line.startswith("| small")]
    assert [line[1:3] for line in lines] == [["turns", "3"], ["single", "3"]]
    assert all(float(line[3].replace(",", "")) > 0 for line in lines)
    kept = json.loads((tmp_path / "all.json").read_text())
    assert [row["ours"]["sampled"] for row in kept["shapes"][0]["rows"]] == [18, 9]
    assert [len(row["ours"]["seconds"]) for row in kept["shapes"][0]["rows"]] == [2, 2]
    assert kept["machine"] in printed


def test_a_vllm_that_fails_is_told_below_the_table(folder: Path, tmp_path: Path) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\necho 'no GPU is left' >&2\nexit 3\n")
    dying.chmod(0o755)
    chosen = ["--workload", "single", "--concurrent", "1", "--repetitions", "1", "--new-tokens", "1"]
    printed = run("--model", folder, *chosen, "--vllm-python", dying)
    assert "| failed | - | - |" in printed
    assert (
        printed.index("| failed |") < printed.index("small: vLLM exited with code 3") < printed.index("no GPU is left")
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--shape", "gpt-5"], "unknown shape 'gpt-5'"),
        (["--model", "nowhere"], "no config.json"),
        (["--vllm-setting", "block_size"], "NAME=JSON"),
        (["--json", "."], "already exists"),
    ],
)
def test_what_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        run(*words)


def test_help_names_the_workloads() -> None:
    printed = run("--help")
    for word in ("single", "groups", "turns", "--vllm-python", "--observation-tokens", "--json"):
        assert word in printed
