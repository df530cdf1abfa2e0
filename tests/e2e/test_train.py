"""A run as a user sees it: the same again, killed and continued, out of disk, asked and evaluated."""

import json
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs.json_files import read_rows
from sleuth.runs.run import Run

pytestmark = pytest.mark.e2e

Bench = Any
Ended = Any
KILLED, TIMED_OUT = -9, -14


def test_run_ends_with_its_table_and_paths(bench: Bench, finished: Ended) -> None:
    assert finished.stdout == ""
    for words in ("generating the world", "indexing", "training", "all, greedy", "run folder   whole", "report.html"):
        assert words in finished.stderr
    found = json.loads((bench.path / "whole" / "summary.json").read_text())
    assert {"em_before", "em_after", "searches_by_hops", "seconds", "peak_memory_gib"} <= found.keys()
    for name in ("em_before", "em_after"):
        assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]
    assert found["searches_by_hops"]["all"]["before"] > 0
    assert 0.1 < found["peak_memory_gib"] < 3
    page = (bench.path / "whole" / "report.html").read_text()
    assert page.count("<svg") >= 5
    assert "Lisbon" in page


def test_run_folder_is_as_published(bench: Bench, finished: Ended) -> None:
    run: Run = bench.run("whole")
    assert [row["step"] for row in run.metrics()] == [0, 1, 2, 3, 4, 5]
    assert [path.name for path in run.checkpoints()] == ["step-0", "step-2", "step-4", "step-5"]
    assert run.manifest()["config"]["train"]["steps"] == 5
    rows = list(read_rows(run.trajectories(5)))
    assert len(rows) == 8
    assert {turn["action"] for row in rows for turn in row["turns"]} >= {"search", "answer"}
    assert any(row.get("policy/gradient_norm", 0.0) > 0 for row in run.metrics())
    assert bench.weights("whole") != (bench.path / "model" / "model.safetensors").read_bytes()


def test_same_seed_gives_the_same_run(bench: Bench, finished: Ended) -> None:
    assert bench.sleuth("train", "small.toml", "--out", "twin").returncode == 0
    assert bench.metrics("twin") == bench.metrics("whole")
    assert bench.weights("twin") == bench.weights("whole")


def test_run_killed_again_and_again_ends_as_if_it_had_not_been(bench: Bench, finished: Ended) -> None:
    run = bench.path / "killed"
    again = ("train", "--resume", "killed")

    begun = bench.sleuth(
        "train", "small.toml", "--out", "killed", moment=("os.rename", ".tmp-questions.train.jsonl", 1)
    )
    assert begun.returncode == KILLED
    half, *whole = names(run)
    assert half.endswith(".tmp-world")
    assert whole == ["checkpoints", "manifest.json", "trajectories"]

    assert bench.sleuth(*again, moment=("os.rename", ".tmp-000000.npy", 1)).returncode == KILLED
    assert names(run) == [".building-index", "checkpoints", "manifest.json", "trajectories", "world"]

    assert bench.sleuth(*again, moment=("open", ".tmp-step-1.jsonl", 1)).returncode == KILLED
    assert [row["step"] for row in bench.metrics("killed")] == [0]

    assert bench.sleuth(*again, moment=("os.mkdir", ".tmp-step-2/trainer", 1)).returncode == KILLED
    half, *whole = names(run / "checkpoints")
    assert half.endswith(".tmp-step-2")
    assert whole == ["step-0"]
    assert [row["step"] for row in bench.metrics("killed")] == [0, 1, 2]

    delay = random.uniform(0.05, 1)
    assert bench.sleuth(*again, seconds=delay).returncode in (TIMED_OUT, 0)

    ended = bench.sleuth(*again)
    assert ended.returncode == 0, f"{ended.stderr} after a kill at {delay} s"
    assert bench.metrics("killed") == bench.metrics("whole"), f"after a kill at {delay} s"
    assert bench.weights("killed") == bench.weights("whole"), f"after a kill at {delay} s"
    assert names(run) == names(bench.path / "whole")


def test_interrupted_run_says_how_to_go_on_and_ends_as_if_it_had_not_been(bench: Bench, finished: Ended) -> None:
    words = ("train", "small.toml", "--out", "interrupted")
    moment = ("open", ".tmp-step-3.jsonl", 1)
    stopped = bench.nursery.sleuth(bench.path, *words, moment=moment, by=signal.SIGTERM)
    assert stopped.returncode == 143
    assert stopped.stderr.endswith("interrupted after step 3; continue with: sleuth train --resume interrupted\n")
    assert "Traceback" not in stopped.stderr
    assert bench.sleuth("train", "--resume", "interrupted").returncode == 0
    assert bench.metrics("interrupted") == bench.metrics("whole")
    assert bench.weights("interrupted") == bench.weights("whole")


def test_full_disk_and_torn_file_lose_nothing(bench: Bench, finished: Ended) -> None:
    start, again = ("train", "small.toml", "--out", "full"), ("train", "--resume", "full")
    assert bench.sleuth(*start, moment=("os.mkdir", ".tmp-step-4/trainer", 1)).returncode == KILLED

    stopped = bench.sleuth(*again, largest_file=200_000)
    refused(stopped, "full/checkpoints/step-4")
    assert "sleuth train --resume full" in stopped.stderr
    kept = bench.path / "full" / "checkpoints" / "step-2"
    assert names(kept.parent) == ["step-0", "step-2"]
    Policy.load(kept, torch.device("cpu"))

    whole = (kept / "model.safetensors").read_bytes()
    (kept / "model.safetensors").write_bytes(whole[:1000])
    refused(bench.sleuth(*again), "full/checkpoints/step-2")

    (kept / "model.safetensors").write_bytes(whole)
    assert bench.sleuth(*again).returncode == 0
    assert bench.metrics("full") == bench.metrics("whole")
    assert bench.weights("full") == bench.weights("whole")


def test_finished_run_goes_on_with_more_steps(bench: Bench, finished: Ended) -> None:
    shutil.copytree(bench.path / "whole", bench.path / "longer")
    again = ("train", "--resume", "longer")
    before = bench.run("longer").manifest()
    ended = bench.sleuth(*again, "--set", "train.samples=3")
    refused(ended, "train.samples")
    assert bench.run("longer").manifest() == before
    ended = bench.sleuth(*again, "--set", "train.steps=6", "--set", "evaluate.after=false")
    assert ended.returncode == 0, ended.stderr
    assert bench.metrics("longer")[:-1] == bench.metrics("whole")
    assert bench.metrics("longer")[-1]["step"] == 6
    manifest = bench.run("longer").manifest()
    assert manifest["changes"] == ["train.steps=6", "evaluate.after=false"]
    assert manifest["config"]["train"]["steps"] == 6
    found = json.loads((bench.path / "longer" / "summary.json").read_text())
    assert ("em_before" in found, "em_after" in found, found["steps"]) == (True, False, 6)
    assert "exact match before training, 5 held-out questions, greedy:" in ended.stderr


AHEAD = ("train.mode=ahead", "algorithm.correction.level=token", "evaluate.every=2")


def test_run_ahead_is_the_same_again(bench: Bench) -> None:
    settings = [word for each in AHEAD for word in ("--set", each)]
    for name, command in (("ahead", bench.sleuth), ("abreast", bench.alone)):
        ended = command("train", "small.toml", "--out", name, *settings)
        assert ended.returncode == 0, ended.stderr
    assert bench.metrics("ahead") == bench.metrics("abreast")
    assert bench.weights("ahead") == bench.weights("abreast")
    assert [row.get("staleness/max") for row in bench.metrics("ahead")] == [None, 0.0, 1.0, 1.0, 1.0, 1.0]


def test_run_is_asked(bench: Bench, finished: Ended) -> None:
    ended = bench.sleuth("ask", "whole", "Who wrote the book?")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("Question: Who wrote the book?\n")
    for tag in ("<search>", "<information>"):
        assert tag in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith(("Answer: ", "No answer: "))
    assert ended.stderr == ""


def test_run_is_evaluated(bench: Bench, finished: Ended) -> None:
    ended = bench.sleuth("evaluate", "whole", "--out", "evaluation.json")
    assert ended.returncode == 0, ended.stderr
    assert "| all | 5 |" in ended.stdout
    found = json.loads((bench.path / "evaluation.json").read_text())
    after = json.loads((bench.path / "whole" / "summary.json").read_text())["em_after"]
    assert found["em"] == after


def refused(ended: Ended, sentence: str) -> None:
    *_, last = ended.stderr.splitlines()
    assert last.startswith("sleuth: ")
    assert sentence in last
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rag_is_trained_on_its_answers_and_continues_exactly(bench: Bench) -> None:
    """One turn an episode: the documents are part of the prompt, and only the sampled answer is trained."""
    (bench.path / "rag.toml").write_text(
        'base = "small.toml"\nname = "rag"\nreward.answer = "import:numbers_of_samples.number"\n'
        '[agent]\nmethod = "rag"\nprompt = "rag-brief"\n'
    )
    # The samples of this model answer alike.
    (bench.path / "numbers_of_samples.py").write_text(
        "def number(question, trajectory):\n    return trajectory.sample / 4\n"
    )
    assert bench.sleuth("train", "rag.toml", "--out", "rag").returncode == 0
    run: Run = bench.run("rag")
    tokens = Tokens.load(bench.path / "model")
    rows = list(read_rows(run.trajectories(1)))
    assert len(rows) == 8
    for row in rows:
        (given, prompt), (sampled, answer) = row["origin"]
        assert (given, sampled) == ("given", "sampled")
        assert len(row["logprobs"]) == answer
        (turn,) = row["turns"]
        assert len(turn["hits"]) == 1
        assert tokens.decode(row["ids"][:prompt]).endswith(f"Question: {row['question']}\n")
        assert "Doc 1" in tokens.decode(row["ids"][:prompt])
        assert row["score"]["parts"]["searches"] == 0.0
    assert any(row.get("policy/gradient_norm", 0.0) > 0 for row in run.metrics())
    assert bench.weights("rag") != (bench.path / "model" / "model.safetensors").read_bytes()

    again = ("train", "rag.toml", "--out", "rag-cut")
    assert bench.sleuth(*again, moment=("open", ".tmp-step-4.jsonl", 1)).returncode == KILLED
    assert bench.sleuth("train", "--resume", "rag-cut").returncode == 0
    assert bench.metrics("rag-cut") == bench.metrics("rag")
    assert bench.weights("rag-cut") == bench.weights("rag")
