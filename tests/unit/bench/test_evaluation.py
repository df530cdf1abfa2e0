"""Evaluation speed: every question is asked at the planned length, and the rate follows from the time."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sleuth.bench.episodes import Plan
from sleuth.bench.evaluation import measure
from sleuth.bench.models import load_tokens
from sleuth.cli.bench import app
from sleuth.errors import InputError
from sleuth.model.shapes import published_shape

SHAPE = published_shape("tiny")
PLAN = Plan(
    questions=6, samples=1, searches=1, prompt_tokens=40, turn_tokens=4, observation_tokens=30, slots=4, warmup=2,
    passages=200,
)  # fmt: skip


def test_every_question_is_asked_and_counted() -> None:
    logged: list[str] = []
    found = measure(SHAPE, load_tokens(SHAPE, None), PLAN, logged.append)
    assert (found.questions, found.searches, found.sampled) == (6, 6, 6 * 8)
    assert 6 * (25 + 38) <= found.tokens <= 6 * (70 + 38)
    assert found.rate == pytest.approx(6 / found.asking)
    assert logged[0].startswith("warm-up: ")
    table = found.table("tiny", PLAN).markdown()
    assert "6 questions, greedy, 4 in flight, 1 searches" in table
    assert "| verl, 51,713 questions on 8 H20, as published, s | 6,000 |" in table
    assert "51,713 questions at this rate, s" in table


def test_command_prints_and_saves_results(tmp_path: Path) -> None:
    words = ["--questions", "3", "--turn-tokens", "3", "--observation-tokens", "20", "--prompt-tokens", "30"]
    words += ["--passages", "200", "--warmup", "0", "--shape", "tiny", "--json", str(tmp_path / "kept.json")]
    outcome = CliRunner().invoke(app, ["evaluate", *words], catch_exceptions=False)
    assert "| questions/s |" in outcome.stdout
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert (kept["shape"], kept["questions"], kept["plan"]["slots"]) == ("tiny", 3, 3)
    assert kept["rate"] == pytest.approx(kept["questions"] / kept["asking"])


def test_episodes_longer_than_the_model_are_rejected() -> None:
    with pytest.raises(InputError, match="exceed the 8192 positions"):
        measure(SHAPE, load_tokens(SHAPE, None), Plan(questions=1, turn_tokens=3000, warmup=0, passages=200), print)
