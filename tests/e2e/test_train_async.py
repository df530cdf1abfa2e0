"""An asynchronous run that is killed again and again: every group is accounted for, and none is sampled twice."""

import fcntl
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleuth.runs.json_files import read_rows
from sleuth.runs.run import Run
from sleuth.train.streaming import FOLDER

pytestmark = pytest.mark.e2e

Bench = Any
KILLED, TIMED_OUT = -9, -14
SETTINGS = (
    "train.mode=async", "train.staleness=2", "algorithm.correction.level=token", "train.steps=8", "train.save_every=3",
    "evaluate.before=false", "evaluate.after=false",
)  # fmt: skip
Samples = tuple[tuple[int, ...], ...]  # the tokens of each sample of a group


def on_disk(run: Run) -> Iterator[tuple[int, Samples]]:
    """The finished groups that a resumed run can read, by their position in the question stream."""
    for path in sorted((run.path / FOLDER).glob("*.jsonl")):
        for row in read_rows(path):
            if "samples" in row:
                yield row["position"], tuple(tuple(each["ids"]) for each in row["samples"])


def in_steps(run: Run) -> Iterator[tuple[int, Samples]]:
    """The groups that were trained on, step by step."""
    for step in (row["step"] for row in run.metrics() if row["step"]):
        rows = list(read_rows(run.trajectories(step)))
        for position in dict.fromkeys(row["group"] for row in rows):
            yield position, tuple(tuple(row["ids"]) for row in rows if row["group"] == position)


def test_killed_run_samples_no_group_twice_and_loses_none(bench: Bench) -> None:
    words = [word for each in SETTINGS for word in ("--set", each)]
    again = ("train", "--resume", "streamed")
    moments: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("train", "small.toml", "--out", "streamed", *words), {"moment": ("open", "groups-1.jsonl", 3)}),
        (again, {"moment": ("open", ".tmp-step-2.jsonl", 1)}),
        (again, {"moment": ("os.mkdir", ".tmp-step-3/trainer", 1)}),
        (again, {"moment": ("open", ".tmp-step-5.jsonl", 1)}),
        *((again, {"seconds": random.uniform(0.3, 2.0)}) for _ in range(4)),
    ]
    finished: dict[int, Samples] = {}
    for command, moment in moments:
        ended = bench.sleuth(*command, **moment)
        assert ended.returncode in (KILLED, TIMED_OUT, 0), f"{ended.stderr} after {moment}"
        for position, samples in on_disk(bench.run("streamed")):
            assert finished.setdefault(position, samples) == samples, f"group {position} was sampled twice"
    ended = bench.sleuth(*again)
    assert ended.returncode == 0, ended.stderr
    trained = list(in_steps(bench.run("streamed")))
    assert sorted(position for position, _ in trained) == list(range(16))
    lost = [position for position, samples in finished.items() if dict(trained)[position] != samples]
    assert lost == []
    require_bound(bench, "streamed")


def require_bound(bench: Bench, name: str) -> None:
    rows = [row for row in bench.metrics(name) if row["step"]]
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= 2 for row in rows)


# The reward of the recipe; once, the second of two processes kills the launcher of both while it samples.
KILLING = """
import os, signal, time
from pathlib import Path
from judge import variety as judged
left = [18]
def variety(question, trajectory):
    left[0] -= 1
    if os.environ["RANK"] == "1" and left[0] == 0 and not Path("launcher-killed").exists():
        Path("launcher-killed").touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    return judged(question, trajectory)
"""


def test_two_processes_that_are_killed_go_on_with_the_groups_of_both(bench: Bench) -> None:
    (bench.path / "killing.py").write_text(KILLING)
    words = [word for each in (*SETTINGS, "reward.answer=import:killing.variety") for word in ("--set", each)]
    ended = bench.sleuth("train", "small.toml", "--out", "paired", "--nproc", "2", *words)
    assert ended.returncode == KILLED, ended.stderr
    wait_until_unlocked(bench.path / "paired" / "lock")
    finished = dict(on_disk(bench.run("paired")))
    assert {position % 2 for position in finished} == {0, 1}
    ended = bench.sleuth("train", "--resume", "paired", "--nproc", "2")
    assert ended.returncode == 0, ended.stderr
    trained = list(in_steps(bench.run("paired")))
    assert sorted(position for position, _ in trained) == list(range(16))
    assert [position for position, samples in finished.items() if dict(trained)[position] != samples] == []
    require_bound(bench, "paired")


def wait_until_unlocked(path: Path) -> None:
    """Wait until the first process, which nobody waits for any more, has ended."""
    end = time.monotonic() + 60
    with path.open("a") as file:
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
            else:
                return
    pytest.fail(f"{path} is still locked")
