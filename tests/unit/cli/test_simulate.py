"""The command simulate: placements, modes, rates from runs and files, recommendations, and bad input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ended = tuple[int | str | None, str, str]
Run = Callable[..., Ended]
SMALL = ("smollm2-135m", "--gpu", "h200", "--set", "train.questions=8", "--set", "train.samples=4", "--steps", "3")


def simulated(sleuth: Run, *words: str) -> dict[str, Any]:
    code, out, _ = sleuth("simulate", *words, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_table_of_a_prediction(sleuth: Run) -> None:
    code, out, _ = sleuth("simulate", *SMALL, "--trainers", "2", "--rollouts", "6", "--staleness", "3")
    assert code == 0
    assert "2 trainers + 6 rollouts, async, staleness 3 (predicted)" in out
    assert "| trajectories per second |" in out
    assert "Rates: planned for H200" in out


def test_staleness_selects_the_mode(sleuth: Run) -> None:
    found = {
        words: simulated(sleuth, *SMALL, *words)
        for words in ((), ("--staleness", "0"), ("--staleness", "1"), ("--mode", "ahead"))
    }
    modes = [(each["scenario"]["mode"], each["scenario"]["staleness"]) for each in found.values()]
    assert modes == [("sync", 0), ("sync", 0), ("async", 1), ("ahead", 1)]
    assert found[()]["trajectories_per_second"] == found["--staleness", "0"]["trajectories_per_second"]
    assert all(each["predicted"] and each["asked"] == each["trained"] for each in found.values())


def test_slow_searches_lower_the_throughput(sleuth: Run) -> None:
    fast, slow = (simulated(sleuth, *SMALL, "--search-seconds", each) for each in ("0", "5"))
    assert slow["step_seconds"] == pytest.approx(fast["step_seconds"] + 2 * 5, rel=0.6)
    assert slow["rollouts"]["search"] > 0.5


def test_printed_rates_are_a_file_of_rates(sleuth: Run, tmp_path: Path) -> None:
    first = simulated(sleuth, *SMALL)
    (tmp_path / "rates.json").write_text(json.dumps(first["rates"]))
    again = simulated(sleuth, *SMALL, "--gpu", "4090", "--rates", "rates.json")
    assert again["trajectories_per_second"] == pytest.approx(first["trajectories_per_second"])


def test_recommended_placements(sleuth: Run) -> None:
    code, out, _ = sleuth("simulate", *SMALL[:-2], "--recommend", "4", "--recommend", "1")
    assert code == 0
    assert "best placements (predicted)" in out
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert {(row[0].strip(), row[1].strip()) for row in rows} == {
        ("4", "sync"), ("4", "ahead"), ("4", "async, staleness 2"), ("1", "sync"),
    }  # fmt: skip
    placements = simulated(sleuth, *SMALL[:-2], "--recommend", "4", "--staleness", "3")["placements"]
    assert {each["scenario"]["staleness"] for each in placements} == {0, 1, 3}


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--gpu", "gtx"], ["'gtx'", "h200"]),
        (["--mode", "sync", "--staleness", "2"], ["--staleness 2", "sync"]),
        (["--mode", "async", "--staleness", "0"], ["--staleness 0", "async"]),
        (["--from", "nowhere"], ["nowhere", "manifest.json"]),
        (["--rates", "nowhere.json"], ["nowhere.json"]),
        (["--recommend", "8", "--trainers", "2"], ["--recommend", "--trainers"]),
        (["--recommend", "1", "--gpu", "t4", "--set", "model.policy=qwen2.5-7b"], ["1", "sleuth plan"]),
        (["--set", "train.mode=later"], ["train.mode"]),
    ],
    ids=["gpu", "sync", "async", "run", "rates", "recommend", "memory", "setting"],
)
def test_bad_input_is_one_line(sleuth: Run, words: list[str], facts: list[str]) -> None:
    code, out, err = sleuth("simulate", "smollm2-135m", "--gpu", "h200", *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert all(fact in err for fact in facts)
