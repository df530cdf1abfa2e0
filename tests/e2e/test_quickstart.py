"""The shipped recipe with its shipped policy, cut down to two steps in a small world."""

import json
from typing import Any

import pytest

from sleuth.runs.json_files import read_rows

pytestmark = pytest.mark.e2e

Bench = Any
SMALL = (
    "world.passages=300",
    "world.questions=60",
    "evaluate.questions=20",
    "train.steps=2",
    "train.questions=4",
    "train.samples=4",
    "train.threads=1",
)


@pytest.fixture(scope="module")
def quick(bench: Bench) -> Any:
    """The run `quick`."""
    ended = bench.sleuth("train", "quickstart", "--out", "quick", *(word for each in SMALL for word in ("--set", each)))
    assert ended.returncode == 0, ended.stderr
    return ended


def test_policy_knows_the_grammar_and_has_the_search_to_learn(bench: Bench, quick: Any) -> None:
    found = json.loads((bench.path / "quick" / "summary.json").read_text())
    assert found["em_before"]["value"] <= 0.4
    assert found["ceiling"] is None
    rows = [row for step in (1, 2) for row in read_rows(bench.run("quick").trajectories(step))]
    assert sum(row["stop"] == "answered" for row in rows) > len(rows) / 2
    hits = [hit for row in rows for turn in row["turns"] for hit in turn["hits"]]
    assert any(hit["gold"] for hit in hits)


def test_policy_is_asked_before_training(bench: Bench, quick: Any) -> None:
    (first, *_) = read_rows(bench.path / "quick" / "world" / "questions.test.jsonl")
    ended = bench.sleuth("ask", "quick", first["question"], "--before")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"Question: {first['question']}\n<think>")
    assert ended.stdout.splitlines()[-1].startswith(("Answer: ", "No answer: "))
