"""What a step leaves on record of its trajectories: advantages, weights and ratios, row by row."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sleuth.records import Trajectory
from sleuth.runs.json_files import read_row, read_rows
from sleuth.train.experience import build_experiences
from sleuth.train.loop import train
from sleuth.train.metrics import TokenLog
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts

Making = Callable[..., Parts]
Rows = list[dict[str, Any]]


def trained(made: Parts, step: int) -> tuple[Rows, Rows, dict[str, Any]]:
    """The trajectories of a step, what was learned of them, and the metrics."""
    train(made, SilentObserver(), 0.0)
    path = made.run.trajectories(step)
    learned = path.with_name(f"step-{step}.learned.jsonl")
    rows, kept = list(read_rows(path)), list(read_rows(learned))
    assert read_row(learned, len(kept) - 1) == kept[-1]
    return rows, kept, next(row for row in made.run.metrics() if row["step"] == step)


def test_every_row_has_its_advantage_and_the_ratios_of_its_tokens(parts: Making, tmp_path: Path, judged: str) -> None:
    rows, learned, metrics = trained(parts(tmp_path / "run", reward={"answer": judged}), 1)
    assert len(rows) == len(learned) == 6
    for row, kept in zip(rows, learned, strict=True):
        assert len(kept["ratio"]) == len(row["logprobs"])
        assert kept["advantage"] == pytest.approx(_advantage(row, rows), abs=1e-4)
    ratios = [ratio for kept in learned for ratio in kept["ratio"]]
    assert sum(ratios) / len(ratios) == pytest.approx(metrics["policy/ratio"], abs=1e-4)
    assert sum(kept["weight"] * len(kept["ratio"]) for kept in learned) == pytest.approx(1.0, abs=1e-4)


def test_ratios_are_those_the_update_saw(parts: Making, tmp_path: Path, judged: str) -> None:
    """The first half of the batch meets the policy that sampled it, the second one that has moved since."""
    train_at = {"updates": 2, "learning_rate": 0.05}
    _, learned, _ = trained(parts(tmp_path / "run", reward={"answer": judged}, train=train_at), 1)
    first, second = (
        [abs(ratio - 1) for kept in half for ratio in kept["ratio"]] for half in (learned[:3], learned[3:])
    )
    assert max(first) < 1e-3
    assert max(second) > 1e-2


def test_critic_gives_each_token_an_advantage_of_its_own(parts: Making, tmp_path: Path, judged: str) -> None:
    algorithm = {"advantage": "gae", "critic": {"gamma": 0.9}}
    rows, learned, _ = trained(parts(tmp_path / "run", reward={"answer": judged}, algorithm=algorithm), 1)
    several = [(row, kept) for row, kept in zip(rows, learned, strict=True) if len(row["logprobs"]) > 1]
    assert several
    for row, kept in several:
        assert len(kept["advantage"]) == len(row["logprobs"])
        assert sorted(kept["advantage"]) == kept["advantage"], "the reward comes with the last token"


def test_trajectories_that_no_update_saw_have_no_ratio(parts: Making, tmp_path: Path) -> None:
    """All are wrong, so that nothing is learned from any of them."""
    _, learned, _ = trained(parts(tmp_path / "run"), 1)
    assert {(kept["advantage"], kept["ratio"]) for kept in learned} == {(0.0, None)}


def test_figures_that_are_no_numbers_are_none(trajectory: Callable[..., Trajectory]) -> None:
    """JSON has no word for them, and a record must not end a run."""
    kept, each = TokenLog(), trajectory()
    (learned,) = build_experiences([each], 1.0)
    kept.start([learned.with_columns(advantage=torch.tensor([math.nan, 1.0]))])
    kept.set_weights([learned.with_columns(weight=torch.full((2,), math.inf))])
    assert kept.collect() == {id(each): {"advantage": [None, 1.0], "weight": None, "ratio": None}}
    assert kept.collect() == {}


def _advantage(row: dict[str, Any], rows: Rows) -> float:
    """The reward less the mean of its group, by its spread."""
    paid = [each["score"]["total"] for each in rows if each["group"] == row["group"]]
    mean = sum(paid) / len(paid)
    spread = math.sqrt(sum((each - mean) ** 2 for each in paid) / (len(paid) - 1))
    return float((row["score"]["total"] - mean) / (spread + 1e-6))
