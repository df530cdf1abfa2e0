"""A recipe reproduced from local files: training, evaluation, the table, and a command that is killed and repeated."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sleuth.runs.json_files import read_json

pytestmark = pytest.mark.e2e

Bench = Any
RECIPE = "search-r1-grpo-qwen2.5-3b"
COMMAND = "from sleuth.cli.main import main; main()"
# Sizes for a tiny model with 160 tokens of context.
SETTINGS = {
    "agent.prompt": "brief",
    "agent.searches": 2,
    "agent.turn_tokens": 10,
    "agent.observation_tokens": 40,
    "agent.context_tokens": 160,
    "engine.slots": 8,
    "evaluate.questions": 4,
    "retrieval.k": 1,
    "train.questions": 2,
    "train.samples": 2,
    "train.updates": 1,
    "train.steps": 2,
    "train.save_every": 1,
    "train.threads": 1,
}
# The model answers Lisbon: it is right on three of four questions of NQ and on none of HotpotQA.
ANSWERS = {"nq": ("Lisbon", "Lisbon", "Lisbon", "Oslo"), "hotpotqa": ("Rome", "Oslo", "Bern")}


@pytest.fixture
def words(bench: Bench, tmp_path: Path) -> list[str]:
    """The command of a reproduction from files in `tmp_path`."""
    for name, answers in {**ANSWERS, "train": ("Lisbon",) * 6}.items():
        rows = [
            {"id": f"{name}-{number}", "question": f"Which is city {number}?", "golden_answers": [answer]}
            for number, answer in enumerate(answers)
        ]
        lines = (json.dumps({**row, "data_source": name}) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    passages = ({"id": str(year), "contents": f'"City {year}"\nThe year {year} of the city.'} for year in range(20))
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(passage) + "\n" for passage in passages))
    files = {"--train": "train.jsonl", "--corpus": "corpus.jsonl", "--out": "made"}
    tests = [word for name in ANSWERS for word in ("--test", str(tmp_path / f"{name}.jsonl"))]
    settings = {**SETTINGS, "model.policy": bench.path / "model"}
    return [
        "reproduce", RECIPE, *tests,
        *(word for option, file in files.items() for word in (option, str(tmp_path / file))),
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    ]  # fmt: skip


def test_a_reproduction_is_killed_continued_and_not_repeated(bench: Bench, words: list[str], tmp_path: Path) -> None:
    made = tmp_path / "made"
    with subprocess.Popen([sys.executable, "-c", COMMAND, *words], stderr=subprocess.PIPE, text=True) as killed:
        deadline = time.monotonic() + 60
        while not (made / "run" / "manifest.json").exists() and killed.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        killed.kill()
    assert not (made / "reproduction.json").exists()
    assert (made / "index").exists()

    continued = bench.sleuth(*words)
    assert continued.returncode == 0, continued.stderr
    assert "[1/4] index: done" in continued.stderr
    assert f"sleuth train --resume {made / 'run'}" in continued.stderr
    table = [line.split(" | ") for line in continued.stdout.splitlines() if line.startswith("| ")]
    assert [row[0].strip("| ") for row in table[2:]] == ["nq", "hotpotqa", "mean of 2 sets"]
    assert table[2][1:] == ["4", "0.750 [0.301, 0.954]", "0.421", "+0.329", "yes |"]
    assert table[3][1] == "3"
    assert table[3][3:5] == ["0.297", "-0.297"]
    for line in ("train.steps: 2 instead of 500", "test set nq: 4 questions instead of 3,610", "instead of e5"):
        assert line in continued.stdout
    require_figures(read_json(made / "reproduction.json"), bench.path / "model")

    files = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file() and path.name != "lock"}
    repeated = bench.sleuth(*words)
    assert repeated.stdout == continued.stdout
    assert [line.rpartition(": ")[2] for line in repeated.stderr.splitlines() if line.startswith("[")] == ["done"] * 4
    assert {path: path.stat().st_mtime_ns for path in files} == files

    (tmp_path / "nq.jsonl").write_text((tmp_path / "nq.jsonl").read_text().replace("Oslo", "Bern"))
    changed = bench.sleuth(*words)
    assert changed.returncode == 2
    assert "another --out" in changed.stderr


def require_figures(found: dict[str, Any], model: Path) -> None:
    """The JSON has the figures of the table, and everything that differs from the paper."""
    assert (found["recipe"], found["model"], found["steps"]) == (RECIPE, str(model), 2)
    assert found["published"]["model"] == "Qwen/Qwen2.5-3B"
    nq, hotpotqa = found["sets"]
    assert (nq["set"], nq["questions"], nq["ours"]["value"], nq["published_inside"]) == ("nq", 4, 0.75, True)
    assert nq["difference"] == pytest.approx(0.329)
    assert (hotpotqa["ours"]["value"], hotpotqa["published"]) == (0.0, 0.297)
    assert found["mean"]["ours"]["value"] == pytest.approx(0.375)
    assert found["mean"]["published"] == pytest.approx((0.421 + 0.297) / 2)
    assert f"model: {model} instead of Qwen/Qwen2.5-3B" in found["departures"]
    assert {"index", "training", "evaluation"} <= found["seconds"].keys()
