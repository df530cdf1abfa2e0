"""A planted collapse: with a learning rate a hundred times too high a run loses its speech, notices, and goes back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sleuth.config import recipe
from sleuth.runs.run import Run

pytestmark = pytest.mark.e2e

Nursery = Any
SETTINGS = {
    "world.passages": 200,
    "world.questions": 40,
    "train.learning_rate": 100 * 2e-4,
    "train.steps": 5,
    "train.questions": 4,
    "train.samples": 6,
    "train.save_every": 1,
    "train.keep": 3,
    "train.threads": 1,
    "evaluate.questions": 5,
    "evaluate.every": 0,
    "guards.rollback_rate": 0.01,
}


@pytest.fixture(scope="module")
def run(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The quickstart with a rate a hundred times that of its recipe, to its end."""
    assert recipe.load("quickstart").train.learning_rate == 2e-4
    home = tmp_path_factory.mktemp("planted")
    words = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    ended = nursery.sleuth(home, "train", "quickstart", "--out", "run", *words, seconds=300)
    assert ended.returncode == 0, ended.stderr
    assert "last good checkpoint" in ended.stderr
    return Run.open(home / "run")


def test_the_collapse_is_noticed_and_rolled_back(run: Run) -> None:
    rollbacks = [event for event in run.events() if event["action"] == "rollback"]
    assert 1 <= len(rollbacks) <= recipe.load("quickstart").guards.rollbacks
    for event in rollbacks:
        assert event["guard"] in ("malformed", "answerless", "non_finite")
        assert event["value"] is None or event["value"] > event["limit"]
    told = {(event["step"], event["guard"]) for event in rollbacks}
    assert len(told) == len({step for step, _ in told}), "one rollback, several guards: it counts once"


def test_every_step_is_recorded_once_and_the_rate_is_lower_after_it(run: Run) -> None:
    rows: list[dict[str, Any]] = list(run.metrics())
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    made = sum(event["action"] == "rollback" for event in run.events())
    highest = SETTINGS["train.learning_rate"] * 0.01**made
    assert all(row["policy/learning_rate"] <= highest * 1.0001 for row in rows if "policy/learning_rate" in row)


def test_the_run_ends_with_a_policy_that_speaks(run: Run) -> None:
    _, *rows = run.metrics()
    assert rows[-1]["episode/answerless"] < 0.5
    assert rows[-1]["episode/malformed"] < 0.5
    assert all(row["episode/em"] > 0 for row in rows)
    final = run.latest()
    assert final is not None
    weights = load_file(final / "model.safetensors")
    assert all(torch.isfinite(each).all() for each in weights.values())


def test_the_report_tells_of_it(run: Run) -> None:
    page = (run.path / "report.html").read_text()
    assert "rolled back" in page
    assert "mark-line" in page
    assert json.loads((run.path / "summary.json").read_text())["steps"] == 5


def test_the_rollback_is_where_it_was_recorded(run: Run) -> None:
    """Metrics of the steps that were undone are gone: what is left is one history."""
    folder: Path = run.path / "trajectories"
    kept = {f"step-{step}.{kind}" for step in range(1, 6) for kind in ("jsonl", "learned.jsonl")}
    assert {path.name for path in folder.glob("*.jsonl")} == kept
