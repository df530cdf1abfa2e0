"""A run in two processes: the run of one, continued by one, and what is said where one of them fails."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import PreTrainedModel

from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs.json_files import read_rows

pytestmark = pytest.mark.e2e

Bench = Any
Ended = Any
# AdamW's first steps are as long for gradients that are all but zero, and these are what two processes sum otherwise.
GENTLE = ("--set", "train.learning_rate=0.0001", "--set", "train.temperature=2.0")
# The reward of the recipe; in the third step one of two processes interrupts the launcher of both.
ENDING = """
import os, signal, time
from judge import variety as judged
from sleuth.runs.interruption import INTERRUPTION
left = [1]
def variety(question, trajectory):
    if trajectory.step == 3 and "SLEUTH_LAUNCHED" in os.environ and os.environ["RANK"] == "1" and left:
        left.pop()
        os.kill(os.getppid(), signal.SIGTERM)
        while INTERRUPTION.signal is None:
            time.sleep(0.01)
    return judged(question, trajectory)
"""
LAUNCHED = "import sys; from sleuth.cli.launch import launch; launch(2, sys.argv[1:])"
# What no two runs share; and two engines have two caches.
APART = ("time/", "speed/", "memory/", "search/latency", "engine/reused")


def test_two_processes_make_the_run_of_one_and_one_continues_it(bench: Bench) -> None:
    """Also with train.mode = async, which is sync if no token may be stale."""
    (bench.path / "ending.py").write_text(ENDING)
    values = ("train.steps=4", "reward.answer=import:ending.variety", "train.mode=async", "train.staleness=0")
    settings = [*GENTLE, *(word for value in values for word in ("--set", value))]
    ended = bench.sleuth("train", "small.toml", "--out", "pair", "--nproc", "2", *settings)
    assert ended.returncode == 143, ended.stderr
    assert (
        len(re.findall("interrupted after step [23]; continue with: sleuth train --resume pair\n", ended.stderr)) == 1
    )
    assert "Traceback" not in ended.stderr
    ended = bench.sleuth("train", "--resume", "pair")
    assert ended.returncode == 0, ended.stderr
    ended = bench.sleuth("train", "small.toml", "--out", "single", *GENTLE, "--set", "train.steps=4")
    assert ended.returncode == 0, ended.stderr

    paired, single = (list(read_rows(bench.path / name / "metrics.jsonl")) for name in ("pair", "single"))
    for step, (theirs, expected) in enumerate(zip(paired, single, strict=True)):
        assert figures(theirs) == pytest.approx(figures(expected), abs=1e-5), f"step {step}"
        assert step == 0 or expected["policy/gradient_norm"] > 0
    for step in (1, 2, 3, 4):
        for theirs, expected in zip(*(episodes(bench.path / name, step) for name in ("pair", "single")), strict=True):
            assert theirs.pop("logprobs") == pytest.approx(expected.pop("logprobs"), abs=1e-5)
            assert theirs == expected
        for theirs, expected in zip(*(learned(bench.path / name, step) for name in ("pair", "single")), strict=True):
            assert theirs.pop("ratio") == pytest.approx(expected.pop("ratio"), abs=1e-4)
            assert theirs == pytest.approx(expected, abs=1e-4)


def test_random_reward_and_a_model_whose_head_is_its_embedding(
    bench: Bench, tiny: Callable[..., PreTrainedModel], tokens: Tokens
) -> None:
    model = tiny("llama")
    assert model.config.tie_word_embeddings
    Policy(model, tokens).save(bench.path / "tied")
    random = ("--set", "reward.answer=import:judge.chance", "--set", "train.resample=2", "--set", "train.updates=2")
    settings = ("--set", "model.policy=tied", "--set", "train.steps=2", *random)
    ended = bench.sleuth("train", "small.toml", "--out", "both", "--nproc", "2", *settings)
    assert ended.returncode == 0, ended.stderr
    weights = load_file(bench.path / "both" / "checkpoints" / "step-2" / "model.safetensors")
    assert "lm_head.weight" not in weights


def figures(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.startswith(APART)}


def episodes(run: Path, step: int) -> list[dict[str, Any]]:
    return list(read_rows(run / "trajectories" / f"step-{step}.jsonl"))


def learned(run: Path, step: int) -> list[dict[str, Any]]:
    return list(read_rows(run / "trajectories" / f"step-{step}.learned.jsonl"))


def test_processes_that_cannot_share_the_questions_are_not_started(bench: Bench) -> None:
    ended = bench.sleuth("train", "small.toml", "--out", "uneven", "--nproc", "3")
    assert ended.stderr.startswith("sleuth: train.questions = 2 ")
    assert ended.stderr.count("\n") == 1
    assert ended.returncode == 2
    assert not (bench.path / "uneven").exists()


def launched(folder: Path, *words: str) -> Ended:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", LAUNCHED, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_what_all_processes_say_is_said_once(tmp_path: Path) -> None:
    ended = launched(tmp_path, "train", "nothing.toml")
    assert ended.stderr.startswith("sleuth: ")
    assert "nothing.toml" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ended.returncode == 2


def test_process_that_is_killed_is_told_of(tmp_path: Path) -> None:
    first_thing(tmp_path, "if os.environ.get('RANK') == '1':\n    os.kill(os.getpid(), 9)")
    ended = launched(tmp_path, "train", "nothing.toml")
    assert re.fullmatch(r"sleuth: process 1 .*SIGKILL.*memory\n", ended.stderr)
    assert ended.returncode == 1


def test_launcher_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    first_thing(
        tmp_path,
        "if 'RANK' in os.environ:\n"
        "    import tomllib\n"
        "    def hang(text):\n"
        "        with open('pids', 'a') as file: print(os.getpid(), file=file)\n"
        "        time.sleep(1000)\n"
        "    tomllib.loads = hang",
    )
    (tmp_path / "some.toml").write_text("")
    environment, pids = (
        {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        tmp_path / "pids",
    )
    command = [sys.executable, "-c", LAUNCHED, "train", "some.toml"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as launcher:
        while not pids.exists() or pids.read_text().count("\n") < 2:
            assert launcher.poll() is None
            time.sleep(0.05)
        launcher.kill()
    workers = [*map(int, pids.read_text().split())]
    end = time.monotonic() + 60
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    left = [*filter(alive, workers)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_error_of_one_process_alone_ends_the_others(tmp_path: Path) -> None:
    first_thing(
        tmp_path,
        "if os.environ.get('RANK') == '0':\n    time.sleep(100)\n"
        "if os.environ.get('RANK') == '1':\n    os.environ['LOCAL_RANK'] = 'one'",
    )
    ended = launched(tmp_path, "train", "nothing.toml")
    assert ended.stderr.count("Traceback") == 1
    assert ended.stderr.splitlines()[-1].startswith("ValueError: invalid literal for int()")
    assert ended.returncode == 1


def first_thing(folder: Path, code: str) -> None:
    """What each process does before anything else."""
    (folder / "sitecustomize.py").write_text(f"import os, time\n{code}\n")
