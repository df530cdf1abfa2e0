"""The commands that measure a step and its passes: what they take, print, keep and refuse."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sleuth.cli.bench import app
from sleuth.errors import InputError

SMALL = [
    "--shape", "tiny", "--questions", "2", "--samples", "2", "--warmup", "1", "--prompt-tokens", "30", "--turn-tokens",
    "4", "--observation-tokens", "20", "--passages", "200", "--update", "2", "--pack-tokens", "300",
]  # fmt: skip


def run(*words: str | Path) -> str:
    outcome = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    assert outcome.exit_code == 0
    return outcome.stdout


def test_a_step_is_printed_and_kept(tmp_path: Path) -> None:
    printed = run("step", *SMALL, "--no-kl", "--recompute", "0.5", "--json", tmp_path / "step.json")
    assert "**tiny: 2 questions x 2, 2 searches, " in printed
    assert "(12 sampled), no KL, updates: 2, all weights, 50% of the layers recomputed**" in printed
    assert "| whole step | " in printed
    kept = json.loads((tmp_path / "step.json").read_text())
    assert set(kept) == {"machine", "shape", "plan", "steps", "rates", "anchors"}
    assert kept["machine"] in printed
    assert (kept["shape"], kept["plan"]["kl"], kept["plan"]["slots"]) == ("tiny", False, 4)
    (step,) = kept["steps"]
    assert sum(step["seconds"].values()) == pytest.approx(step["whole"])
    assert (step["trajectories"], step["sampled"], step["searches"]) == (4, 48, 8)


def test_passes_are_printed_and_kept(tmp_path: Path) -> None:
    work = ["--rows", "2", "--row-tokens", "10", "--repetitions", "2"]
    printed = run("train", "--shape", "tiny", *work, "--json", tmp_path / "train.json")
    assert "tiny, 2 rows of 10 tokens, every position scored, median of 2**" in printed
    kept = json.loads((tmp_path / "train.json").read_text())
    assert [len(way["seconds"]) for way in kept["ways"]] == [2, 2, 2, 2]
    assert (kept["head"], kept["work"]["row_tokens"]) == (None, 10)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["step", "--shape", "gpt-5"], "unknown shape 'gpt-5'"),
        (["step", "--model", "nowhere"], "no config.json"),
        (["step", "--model", "nowhere", "--shape", "tiny"], "exclude each other"),
        (["step", "--json", "."], "already exists"),
        (["step", "--json", "nowhere/step.json"], "folder nowhere does not exist"),
        (["step", "--shape", "tiny", "--update", "3"], "smaller than a group of 5"),
        (["train", "--shape", "tiny", "--row-tokens", "9000"], "more than the 8192 positions"),
    ],
)
def test_what_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        run(*words)


def test_a_refusal_is_one_line_and_code_2(tmp_path: Path) -> None:
    (tmp_path / "there.json").touch()
    command = [
        sys.executable,
        "-c",
        "from sleuth.cli.main import main; main()",
        "bench",
        "step",
        "--json",
        "there.json",
    ]
    outcome = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert outcome.returncode == 2
    assert outcome.stderr == "sleuth: there.json already exists; name a new file, or move the old one away\n"
