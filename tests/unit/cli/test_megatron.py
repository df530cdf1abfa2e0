"""The command import: a model folder that a policy can be loaded from, or one sentence and exit code 2."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.cli.main import main
from sleuth.model import megatron
from sleuth.model.load import load
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens


@pytest.fixture
def like(tmp_path: Path, tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> Path:
    """A model folder, and beside it a Megatron checkpoint of its weights."""
    model = tiny("qwen2")
    Policy(model, tokens).save(tmp_path / "like")
    weights = dict(model.named_parameters())
    megatron.export_checkpoint(model.config, lambda name: weights[name].detach(), tmp_path / "megatron", 40)
    return tmp_path / "like"


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int | str | None:
    """The exit code of `sleuth import` with these arguments; 0 if it returns."""
    monkeypatch.setattr(sys, "argv", ["sleuth", "import", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


def test_imported_model_is_a_policy(
    like: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = like.parent / "megatron", like.parent / "out"
    assert leave(monkeypatch, "--megatron", source, "--like", like, out) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"{source / 'iter_0000040'} imported to {out}: 27 weights, float32")
    assert said[1].endswith("11 extra states")
    before, after = (load(folder, torch.device("cpu"), torch.float32) for folder in (like, out))
    theirs = dict(before.named_parameters())
    assert all(torch.equal(each, theirs[name]) for name, each in after.named_parameters())


@pytest.mark.parametrize(
    ("source", "model", "facts"),
    [
        ("nowhere", "like", "is not a Megatron checkpoint"),
        ("like", "like", "is not a Megatron checkpoint"),
        ("megatron", "nowhere", "no model folder"),
        ("megatron", "megatron", "has no config.json"),
        ("megatron", "quickstart", "give --like the model that Megatron trained"),
    ],
)
def test_bad_input_is_one_sentence(
    source: str,
    model: str,
    facts: str,
    like: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = model if model == "quickstart" else like.parent / model
    assert leave(monkeypatch, "--megatron", like.parent / source, "--like", named, like.parent / "out") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("sleuth: ")
    assert facts in line
    assert not (like.parent / "out").exists()
