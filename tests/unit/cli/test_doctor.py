"""The command doctor: its tables, its JSON, how it leaves, and what it refuses in one line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.cli.main import main
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens

Ended = tuple[int | str | None, str, str]
Doctor = Callable[..., Ended]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs `sleuth doctor` in a folder of its own: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["sleuth", "doctor", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        return caught.value.code, printed.out, printed.err

    return run


@pytest.fixture
def model(doctor: Doctor, tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> Path:
    Policy(tiny(), tokens).save(Path("model"))
    return Path("model")


def test_shipped_policy_is_sound_on_this_machine(doctor: Doctor) -> None:
    code, out, err = doctor("--device", "cpu", "--tokens", "4")
    assert (code, err) == (0, "")
    for words in ("# Environment", "| torch | ", "| Triton | ", ": quickstart", "| float32 on"):
        assert words in out
    assert "| bad |" not in out


def test_model_in_json(doctor: Doctor, model: Path) -> None:
    code, out, _ = doctor("model", "--device", "cpu", "--tokens", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["verdict"] in ("ok", "warn")
    assert [each["dtype"] for each in found["parity"]] == ["float32"]
    assert found["parity"][0]["mean"] < 1e-5
    assert {"Python", "torch", "CUDA", "disk", "float32 on cpu"} <= {each["what"] for each in found["findings"]}


def test_broken_model_exits_1_and_says_so(doctor: Doctor, model: Path) -> None:
    broken = Policy.load(model, torch.device("cpu"))
    with torch.no_grad():
        next(broken.model.parameters()).fill_(torch.nan)
    broken.save(model)
    code, out, _ = doctor("model", "--device", "cpu", "--tokens", "2")
    assert code == 1
    assert "not finite" in out
    assert "| bad |" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "no model folder at nowhere"),
        (["empty"], "empty has no config.json"),
        (["model", "--device", "cpu"], "model cannot be served exactly: its rotary"),
        (["--device", "cuda:77"], "--device cuda:77 is not"),
        (["--device", "cpu", "--dtype", "bfloat16"], "--dtype bfloat16 crashes some CPUs"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(doctor: Doctor, model: Path, words: list[str], sentence: str) -> None:
    Path("empty").mkdir()
    settings = json.loads((model / "config.json").read_text())
    settings["rope_parameters"] |= {"rope_type": "dynamic", "factor": 2.0}
    (model / "config.json").write_text(json.dumps(settings))
    code, _, err = doctor(*words)
    assert code == 2
    assert err.startswith(f"sleuth: {sentence}")
    assert err.count("\n") == 1
