"""An asynchronous run that is killed again and again: every group is accounted for, and none is sampled twice."""

import random
from collections.abc import Iterator
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
    rows = [row for row in bench.metrics("streamed") if row["step"]]
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= 2 for row in rows)
