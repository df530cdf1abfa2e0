"""The engine check: devices, precisions, verdicts and failures."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.doctor.engine_check import check, choose_device, choose_dtypes, failure_finding, finding
from sleuth.doctor.environment import Finding, Verdict, json_text, markdown, worst
from sleuth.errors import ConfigError, EngineFailure, InputError
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.train.parity import Parity

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def folder(tiny: Callable[..., PreTrainedModel], tokens: Tokens, tmp_path: Path) -> Path:
    Policy(tiny(), tokens).save(tmp_path / "model")
    return tmp_path / "model"


def parity(mean: float, dtype: str = "float32") -> Parity:
    return Parity(512, mean, 2 * mean, mean, dtype, "cuda", 1.0)


def test_engine_agrees_with_the_trainer(folder: Path) -> None:
    found = check(folder, CPU, torch.float32, tokens=6)
    assert (found.dtype, found.device) == ("float32", "cpu")
    assert 100 < found.tokens <= 6 * (6 * 4 + 6 * 2)
    assert finding(found).verdict is Verdict.OK


def test_engine_that_breaks_says_why(folder: Path) -> None:
    broken = Policy.load(folder, CPU)
    with torch.no_grad():
        next(broken.model.parameters()).fill_(torch.nan)
    broken.save(folder)
    with pytest.raises(EngineFailure) as caught:
        check(folder, CPU, torch.float32, tokens=2)
    row = failure_finding(CPU, torch.float32, caught.value)
    assert (row.what, row.verdict) == ("float32 on cpu", Verdict.BAD)
    assert "not finite" in row.found


def test_model_that_cannot_be_served_is_refused_with_its_reason(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sliding_window": 64}))
    with pytest.raises(InputError, match=r"cannot be served exactly.*64"):
        check(folder, CPU, torch.float32)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (parity(1e-6), Verdict.OK),
        (parity(1e-3), Verdict.WARN),
        (parity(1e-3, "bfloat16"), Verdict.OK),
        (parity(1e-2, "bfloat16"), Verdict.WARN),
        (parity(0.03, "bfloat16"), Verdict.BAD),
        (parity(float("nan")), Verdict.BAD),
    ],
)
def test_verdict_follows_the_precision_and_the_limit_of_a_run(found: Parity, verdict: Verdict) -> None:
    row = finding(found)
    assert row.verdict is verdict
    assert bool(row.remedy) is (verdict is not Verdict.OK)


def test_gpu_is_checked_in_both_precisions_and_a_cpu_only_in_the_safe_one() -> None:
    assert choose_dtypes(None, GPU) == [torch.bfloat16, torch.float32]
    assert choose_dtypes("bfloat16", GPU) == [torch.bfloat16]
    assert choose_dtypes(None, CPU) == choose_dtypes("float32", CPU) == [torch.float32]
    with pytest.raises(ConfigError, match=r"--dtype bfloat16 .*float32"):
        choose_dtypes("bfloat16", CPU)


@pytest.mark.parametrize("wanted", ["cuda:99", "tpu", ""])
def test_device_that_is_not_there_is_rejected(wanted: str) -> None:
    assert choose_device("cpu") == CPU
    with pytest.raises(ConfigError, match=f"--device {wanted} .*auto or one of cpu"):
        choose_device(wanted)


def test_worst_row_decides() -> None:
    rows = [Finding("a", "1"), Finding("b", "2", Verdict.WARN, "do"), Finding("c", "3", Verdict.BAD, "stop")]
    assert [worst(rows[:count]) for count in range(4)] == [Verdict.OK, Verdict.OK, Verdict.WARN, Verdict.BAD]


def test_markdown_and_json_reports() -> None:
    rows = [Finding("a|b", "1\n2", Verdict.WARN, "do")]
    assert markdown("Title", rows).splitlines() == [
        "# Title",
        "",
        "| What | Found | Verdict | Remedy |",
        "| --- | --- | --- | --- |",
        "| a\\|b | 1 2 | warn | do |",
    ]
    written = json.loads(json_text(rows, [parity(float("nan"))]))
    assert written["verdict"] == "warn"
    assert written["findings"] == [{"what": "a|b", "found": "1\n2", "verdict": "warn", "remedy": "do"}]
    assert (written["parity"][0]["mean"], written["parity"][0]["tokens"]) == (None, 512)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_shipped_policy_agrees_on_a_gpu(dtype: torch.dtype) -> None:
    from sleuth.config import recipe

    assert finding(check(recipe.resolve_policy("quickstart"), GPU, dtype)).verdict is Verdict.OK
