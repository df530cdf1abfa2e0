"""What is printed and kept of the steps that were measured."""

import json
from dataclasses import replace

import pytest

from sleuth.bench.plan import Plan
from sleuth.bench.step import Measured
from sleuth.bench.step_report import ANCHORS, markdown, rates, record

FIRST = Measured(
    seconds={"generate": 4.0, "score": 1.0, "train": 3.0, "optimiser": 1.0, "publish": 0.5, "rest": 0.5},
    searching=2.0,
    searches=20,
    latency=0.05,
    trajectories=10,
    tokens=9000,
    sampled=2400,
    updates=2,
    mfu=0.5,
    peak_gib=60.0,
)
SECOND = replace(FIRST, seconds=FIRST.seconds | {"train": 6.0, "rest": 7.5}, mfu=0.25, peak_gib=70.0, latency=0.15)


def test_rates_are_over_all_steps() -> None:
    found = rates([FIRST, SECOND])
    assert found["trajectories"] == pytest.approx(20 / 30)
    assert found["tokens"] == pytest.approx(18_000 / 30)
    assert found["sampled"] == pytest.approx(4800 / 30)
    assert found["generating"] == pytest.approx(4800 / 8)
    assert found["training"] == pytest.approx(18_000 / 9)
    assert found["mfu"] == pytest.approx((0.5 * 3 + 0.25 * 6) / 9)
    assert found["peak_gib"] == 70.0
    assert found["latency_ms"] == pytest.approx(100.0)


def test_what_only_a_gpu_has_is_left_open() -> None:
    found = rates([replace(FIRST, mfu=None, peak_gib=None, searches=0, latency=0.0)])
    assert (found["mfu"], found["peak_gib"], found["latency_ms"]) == (None, None, None)


def test_the_tables() -> None:
    printed = markdown("small", Plan(questions=2, samples=5), [FIRST])
    title = "**small: 2 questions x 5, 2 searches, 900 tokens a trajectory (240 sampled), KL, updates: 2, all weights**"
    assert title in printed
    lines = printed.splitlines()
    start = lines.index("| generate | 4 | 40.0% |")
    assert lines[start : start + 8] == [
        "| generate | 4 | 40.0% |",
        "| - with a search under way | 2 | 20.0% |",
        "| score | 1 | 10.0% |",
        "| train | 3 | 30.0% |",
        "| optimiser | 1 | 10.0% |",
        "| publish | 0.5 | 5.0% |",
        "| rest | 0.5 | 5.0% |",
        "| whole step | 10 | 100.0% |",
    ]
    assert "| MFU of forward and backward (6N) | 0.5 |" in lines
    assert "| Search-R1, trajectories/s per H100, from its paper | 2.4 |" in lines


def test_the_table_of_several_steps_shows_means() -> None:
    printed = markdown("small", Plan(lora=8, kl=False, recompute=0.5), [FIRST, SECOND])
    assert "no KL, updates: 2, LoRA of rank 8, 50% of the layers computed again, mean of 2 steps**" in printed
    assert "| train | 4.5 | 30.0% |" in printed
    assert "| whole step | 15 | 100.0% |" in printed


def test_the_record_is_json_and_whole() -> None:
    kept = json.loads(json.dumps(record("a machine", "small", Plan(), [FIRST, SECOND])))
    assert [step["whole"] for step in kept["steps"]] == [10.0, 20.0]
    assert kept["steps"][0]["seconds"] == FIRST.seconds
    assert (kept["machine"], kept["shape"], kept["plan"]["update"]) == ("a machine", "small", 256)
    assert kept["rates"] == rates([FIRST, SECOND])
    assert kept["anchors"] == ANCHORS
