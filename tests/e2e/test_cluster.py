"""Runs on a Ray cluster of four nodes on this machine: the run of one process, also when workers and nodes are lost."""

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

from sleuth.runs.json_files import read_rows

pytestmark = [pytest.mark.e2e, pytest.mark.ray]

Bench = Any
Nodes = Any
Training = Any
Start = Callable[..., Training]
Ended = subprocess.CompletedProcess[str]

COMMAND = "from sleuth.cli.main import main; main()"
# AdamW's first steps are as long for gradients that are all but zero, and these are what two processes sum otherwise.
GENTLE = ("--set", "train.learning_rate=0.0001", "--set", "train.temperature=2.0")
# What no two runs share; and two engines have two caches.
APART = ("time/", "speed/", "memory/", "search/latency", "engine/reused", "cluster/", "weights/")
STARTUP = 600  # seconds
# Python imports it at its start, where an installed or editable sleuth would be found.
WITHOUT_SLEUTH = """
import sys
from importlib.machinery import PathFinder

sys.path = [each for each in sys.path if PathFinder.find_spec("sleuth", [each]) is None]
sys.meta_path = [each for each in sys.meta_path if "editable" not in str(getattr(each, "__module__", ""))]
"""


def command(folder: Path, *words: str) -> Ended:
    """Run a command to its end."""
    words = (sys.executable, "-c", COMMAND, *words)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=STARTUP, check=False)


def sets(**cluster: int) -> tuple[str, ...]:
    return tuple(word for name, value in cluster.items() for word in ("--set", f"cluster.{name}={value}"))


def train_alone(bench: Bench, name: str, *words: str) -> Path:
    """A run in one process."""
    ended = bench.sleuth("train", "small.toml", "--out", name, *GENTLE, *words, seconds=STARTUP)
    assert ended.returncode == 0, ended.stderr
    path: Path = bench.path / name
    return path


@pytest.fixture(scope="module")
def single(bench: Bench) -> Path:
    return train_alone(bench, "alone")


def figures(row: dict[str, Any], apart: tuple[str, ...]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.startswith(apart)}


def require_equal(run: Path, expected: Path, apart: tuple[str, ...] = APART) -> None:
    """Every metric and every token of a run is that of another one."""
    rows = [list(read_rows(each / "metrics.jsonl")) for each in (run, expected)]
    for step, (theirs, ours) in enumerate(zip(*rows, strict=True)):
        assert figures(theirs, apart) == pytest.approx(figures(ours, apart), abs=1e-5), f"step {step}"
        assert step == 0 or ours["policy/gradient_norm"] > 0
        if step:
            episodes = [list(read_rows(each / "trajectories" / f"step-{step}.jsonl")) for each in (run, expected)]
            for one, other in zip(*episodes, strict=True):
                assert one.pop("logprobs") == pytest.approx(other.pop("logprobs"), abs=1e-5)
                assert one == other


def require_accounts(run: Path, episodes: int) -> dict[str, float]:
    """Every episode of a step was asked and finished once; returns the sums over all steps."""
    rows = list(read_rows(run / "metrics.jsonl"))[1:]
    for row in rows:
        assert row["cluster/finished"] == row["cluster/asked"] >= episodes
        assert row["cluster/lost"] == row["cluster/retried"]
        assert row["cluster/cancelled"] == 0
    for step in range(1, len(rows) + 1):
        trained = [(row["group"], row["sample"]) for row in read_rows(run / "trajectories" / f"step-{step}.jsonl")]
        assert len(trained) == len(set(trained)) == episodes
    return {name: sum(row[name] for row in rows) for name in rows[0] if name.startswith(("cluster/", "weights/"))}


@pytest.mark.parametrize("trainers", [2, 4])
def test_workers_replicas_and_ranks_make_the_run_of_one_process(
    bench: Bench, start: Start, nodes: Nodes, trainers: int
) -> None:
    questions = ("--set", f"train.questions={trainers}")
    training = start(f"cluster-{trainers}", *GENTLE, *questions, *sets(trainers=trainers, rollouts=2, retrievers=1))
    assert training.finish() == 0, training.printed
    assert "Traceback" not in training.printed
    require_equal(training.run, train_alone(bench, f"alone-{trainers}", *questions))
    total = require_accounts(training.run, 4 * trainers)
    assert total["cluster/lost"] == total["cluster/workers_lost"] == 0
    assert total["weights/bytes"] > 0
    assert total["cluster/workers"] == 2 * 5
    assert nodes.actors("RolloutWorker") == []


def test_asynchronous_ranks_and_evaluations_share_the_workers(start: Start) -> None:
    settings = ("train.mode=async", "train.staleness=2", "algorithm.correction.level=token", "evaluate.every=2")
    words = [word for each in settings for word in ("--set", each)]
    training = start("streamed", *words, *sets(trainers=2, rollouts=2))
    assert training.finish() == 0, training.printed
    assert "Traceback" not in training.printed
    rows = list(read_rows(training.run / "metrics.jsonl"))[1:]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= 2 for row in rows)
    assert max(row["staleness/max"] for row in rows) > 0
    assert ["evaluate/em" in row for row in rows] == [False, True, False, True, False]
    steps = [read_rows(training.run / "trajectories" / f"step-{step}.jsonl") for step in range(1, 6)]
    assert sorted({each["group"] for written in steps for each in written}) == list(range(10))
    recorded = list(read_rows(training.run / "workers.jsonl"))
    assert [(row["step"], [each["number"] for each in row["workers"]]) for row in recorded] == [
        (step, [0, 1]) for step in range(1, 6)
    ]
    finished = sum(each["episodes"] for row in recorded for each in row["workers"])
    assert finished == sum(row["cluster/finished"] for row in rows) > 5 * 8
    assert all(each["busy"] > 0 for each in recorded[0]["workers"])


def test_killed_worker_replica_and_node_lose_no_episode(bench: Bench, single: Path, start: Start, nodes: Nodes) -> None:
    training = start("faults", *GENTLE, *sets(trainers=1, rollouts=2, retrievers=2))
    training.wait_for_step(1)
    os.kill(nodes.actors("RolloutWorker")[0], signal.SIGKILL)
    training.wait_for_step(2)
    os.kill(nodes.actors("RetrieverReplica")[0], signal.SIGKILL)
    training.wait_for_step(3)
    victim = worker_node(training.printed, nodes)
    nodes.order(victim)
    assert training.finish() == 0, training.printed
    require_equal(training.run, single, (*APART, "search/", "engine/"))  # the counts of a lost worker are lost with it
    total = require_accounts(training.run, 8)
    assert total["cluster/workers_lost"] >= 1
    assert "rollout worker" in training.printed
    nodes.order({"num_cpus": 2})


def test_worker_and_replica_that_hang_are_replaced(start: Start, nodes: Nodes) -> None:
    words = ("--set", "train.steps=1000", "--set", "evaluate.before=false")
    training = start("hung", *words, *sets(rollouts=2, retrievers=1, silence=10))
    training.wait_for_step(1)
    for name in ("RolloutWorker", "RetrieverReplica"):
        hung = nodes.actors(name)[0]
        os.kill(hung, signal.SIGSTOP)
        training.wait_for_step(len(list(read_rows(training.run / "metrics.jsonl"))) + 2)
        assert hung not in nodes.actors(name)
    training.process.send_signal(signal.SIGINT)
    assert training.finish() == 130, training.printed
    killed = re.findall(r"^(.*) \d has not answered for 10 s .* killed$", training.printed, re.MULTILINE)
    assert killed == ["rollout worker", "retriever"]
    assert require_accounts(training.run, 8)["cluster/workers_lost"] == 1


def worker_node(printed: str, nodes: Nodes) -> str:
    """A node that runs a rollout worker, and neither a trainer nor the head of the cluster."""
    lines = re.findall(r"^\S+ (\w{8}): .*CPUs: (.*)$", printed, re.MULTILINE)
    names = [short for short, actors in lines if "rollout" in actors and "trainer" not in actors]
    found: str = next(name for name in nodes.names[1:] if name[:8] in names)
    return found


def test_dead_trainer_ends_the_run_which_resumes(single: Path, start: Start, nodes: Nodes) -> None:
    training = start("dead", *GENTLE, *sets(trainers=2, rollouts=1))
    training.wait_for_step(3)
    os.kill(nodes.actors("TrainerRank")[-1], signal.SIGKILL)
    assert training.finish() == 1, training.printed
    assert re.search(r"^sleuth: trainer rank \d died .*resume", training.printed, re.MULTILINE), training.printed
    assert training.printed.count("sleuth: ") == 1
    resumed = start("dead")
    resumed.wait_for_step(4)
    resumed.process.send_signal(signal.SIGINT)
    assert resumed.finish() in (0, 130), resumed.printed


def test_interrupted_run_is_saved_and_leaves_no_actor(start: Start, nodes: Nodes) -> None:
    training = start("interrupted", *GENTLE, "--set", "train.steps=1000", *sets(rollouts=2))
    training.wait_for_step(1)
    training.process.send_signal(signal.SIGINT)
    assert training.finish() == 130, training.printed
    assert re.search(r"interrupted after step \d+; continue with: sleuth train --resume", training.printed)
    assert "Traceback" not in training.printed
    assert nodes.actors("RolloutWorker") == nodes.actors("TrainerRank") == []


def test_killed_driver_ends_its_actors(start: Start, nodes: Nodes) -> None:
    training = start("orphaned", "--set", "train.steps=1000")
    training.wait_for_step(1)
    training.process.kill()
    end = time.monotonic() + 60
    while nodes.actors("RolloutWorker") or nodes.actors("TrainerRank"):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_placement_is_printed_and_freed(bench: Bench, nodes: Nodes) -> None:
    words = ("train", "small.toml", "--ray", nodes.address, "--dry-run", *sets(trainers=2, rollouts=4, retrievers=2))
    for _ in range(2):  # all CPUs are free again after the first
        ended = command(bench.path, *words)
        assert ended.returncode == 0, ended.stderr
        assert len(ended.stdout.splitlines()) == 4
        assert all(f"rollout worker {number}" in ended.stdout for number in range(4))


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--ray", "local", *sets(rollouts=500)), ["500 rollout workers", "CPUs"]),
        (("--ray", "127.0.0.1:1"), ["127.0.0.1:1"]),
        (("--ray", "local", "--nproc", "2"), ["--nproc", "cluster.trainers"]),
        (("--dry-run",), ["--dry-run", "--ray"]),
        (("--ray", "local", "--set", "engine.lockstep=on"), ["engine.lockstep"]),
    ],
    ids=["too many", "no cluster", "nproc", "dry run", "lockstep"],
)
def test_bad_input_is_one_line(bench: Bench, words: tuple[str, ...], facts: list[str]) -> None:
    ended = command(bench.path, "train", "small.toml", "--out", "refused", *words)
    line = ended.stderr.splitlines()[-1]
    assert ended.returncode == 2, ended.stderr
    assert line.startswith("sleuth: ")
    assert all(fact in line for fact in facts), line
    assert "Traceback" not in ended.stderr
    assert not (bench.path / "refused").exists()


def only_message(printed: str) -> str:
    """The only message of ours, which is the last line; Ray's lines about its nodes and resources may precede it."""
    messages = [line for line in printed.splitlines() if line.startswith("sleuth: ")]
    assert messages == printed.splitlines()[-1:], printed
    assert "Traceback" not in printed
    return messages[0]


def test_node_without_the_package_is_named(bench: Bench, start: Start, nodes: Nodes) -> None:
    hidden = bench.path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(WITHOUT_SLEUTH)
    bare = nodes.order({"num_cpus": 6, "env_vars": {"PYTHONPATH": str(hidden)}})
    training = start("bare", "--set", "cluster.cpus=3")
    assert training.finish() == 2, training.printed
    nodes.order(bare)
    assert "cannot run sleuth: sleuth is not installed" in only_message(training.printed)
    assert "ModuleNotFoundError" not in training.printed  # of an actor that could not import its class
    assert nodes.actors("TrainerRank") == nodes.actors("RolloutWorker") == []


def test_more_gpus_than_the_cluster_has(start: Start, nodes: Nodes) -> None:
    nodes.order({"num_cpus": 2, "num_gpus": 1})  # the last test, because this cluster has a GPU from now on
    training = start("greedy", *sets(trainers=2, rollouts=2, patience=5))
    assert training.finish() == 2, training.printed
    line = only_message(training.printed)
    assert all(fact in line for fact in ("2 trainers, 2 rollout workers", "4 GPUs", "have 1;"))
    assert not training.run.exists()
    assert nodes.actors("TrainerRank") == nodes.actors("RolloutWorker") == []
