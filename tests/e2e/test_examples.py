"""The examples of docs/extending.md train a few steps on a CPU, through the real command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "hooks"
SMALL = ("world.passages=200", "train.steps=1", "train.questions=4", "train.samples=4", "evaluate.questions=4")
HOOKS = {
    "turn rewards and objective": (
        [
            "reward.answer=import:rewards.evidence",
            "algorithm.advantage=import:objective.sign_advantage",
            "algorithm.loss=import:objective.unclipped",
            "algorithm.correction.level=import:objective.soft_weights",
        ],
        ("reward/turns", "policy/ratio"),
    ),
    "reward parts and method": (
        ["reward.answer=import:rewards.brief", "agent.method=import:generate.search_then_answer"],
        ("reward/right", "reward/search_cost"),
    ),
}


@pytest.mark.e2e
@pytest.mark.parametrize(("settings", "metrics"), HOOKS.values(), ids=HOOKS)
def test_an_example_hook_trains(settings: list[str], metrics: tuple[str, ...], tmp_path: Path) -> None:
    options = [word for setting in (*SMALL, *settings) for word in ("--set", setting)]
    command = [sys.executable, "-c", "from sleuth.cli.main import main; main()", "train", "quickstart"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run"), *options], cwd=EXAMPLES, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert [name for name in metrics if name not in last] == []
