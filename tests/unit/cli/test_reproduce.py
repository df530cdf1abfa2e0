"""sleuth reproduce before it runs anything: the dry run of every recipe, and options that are refused."""

import re
from pathlib import Path

import pytest

from sleuth.cli.main import app
from sleuth.errors import ConfigError, InputError, UserError
from sleuth.reproduce.published import PUBLISHED

RECIPE = "search-r1-grpo-qwen2.5-3b"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLEUTH_DATA", raising=False)


def reproduce(*words: str) -> None:
    app(["reproduce", *words], standalone_mode=False)


@pytest.mark.parametrize("name", PUBLISHED)
def test_dry_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(name, "--dry-run", "--gpu", "h200", "--set", "train.steps=7")
    shown = capsys.readouterr().err
    assert len(re.findall(r"^ \d \w", shown, re.MULTILINE)) == 8
    for words in ("[14 GB]", "[65 GB]", "GB needed at", "7 steps of about", "on H200", "train.steps: 7 instead of"):
        assert words in shown
    figures = PUBLISHED[name]
    assert (f"{figures[0].model}, mean EM {figures[0].mean:.3f}" if figures else "no figures on these sets") in shown
    assert list(tmp_path.iterdir()) == []


def test_the_dry_run_of_a_model_that_cannot_be_read_has_no_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(RECIPE, "--dry-run", "--set", "model.policy=nothing")
    assert "not predicted: no model folder at nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["nope"], ConfigError, "nope.*search-r1-grpo-qwen2.5-3b"),
        ([RECIPE, "--gpu", "h200"], ConfigError, "--gpu h200 has no effect without --dry-run"),
        ([RECIPE, "--dry-run", "--gpu", "abacus"], ConfigError, "abacus"),
        ([RECIPE, "--train", "x"], InputError, "--train x is not a file"),
        ([RECIPE, "--test", "empty.jsonl"], InputError, "empty.jsonl"),
        ([RECIPE, "--corpus", "x"], InputError, "--corpus x does not exist"),
        ([RECIPE, "--index", "x"], InputError, "x is not an index folder"),
        ([RECIPE, "--index", "x", "--corpus", "y"], ConfigError, "--corpus has no effect with --index"),
        ([RECIPE, "--set", "train.stepz=1"], ConfigError, "train.steps"),
        ([RECIPE, "--set", "data.train=x"], ConfigError, "use --train"),
        ([RECIPE, "--until", "lunch"], InputError, "lunch.*comparison"),
        ([RECIPE, "--out", "taken"], InputError, "notes.txt"),
    ],
)
def test_options_that_are_refused(words: list[str], error: type[UserError], said: str, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(error, match=said):
        reproduce(*words)
    assert not (tmp_path / "reproductions").exists()


def test_a_model_that_is_too_large_is_refused_before_any_download(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs .* GiB"):
        reproduce("search-r1-ppo-qwen2.5-7b", "--set", "train.questions=2", "--set", "train.updates=1")
    assert list(tmp_path.iterdir()) == []
