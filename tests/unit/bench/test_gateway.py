"""Throughput of the gateway: both agents play the planned episodes, and the parts of a call add up."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sleuth.bench.episodes import Plan
from sleuth.bench.gateway import BUILT_IN, CLIENTS, PARTS, full_vocabulary, markdown, measure, ratio
from sleuth.bench.models import load_tokens
from sleuth.cli.bench import app
from sleuth.model.shapes import published_shape

SHAPE = published_shape("tiny")
PLAN = Plan(
    questions=3, samples=2, searches=2, prompt_tokens=60, turn_tokens=4, observation_tokens=40, slots=4, warmup=1,
    passages=200, engine_memory=0.01,
)  # fmt: skip


def test_both_agents_play_the_same_episodes() -> None:
    logged: list[str] = []
    built_in, clients = measure(SHAPE, load_tokens(SHAPE, None), PLAN, 2, logged.append)
    assert (built_in.agent, clients.agent) == (BUILT_IN, CLIENTS)
    for each in (built_in, clients):
        assert (each.trajectories, each.calls, each.sampled) == (6, 18, 72)
        assert each.rate == pytest.approx(6 / each.seconds)
    assert clients.tokens == pytest.approx(built_in.tokens, rel=0.1)
    assert list(clients.parts) == list(PARTS)
    assert min(clients.parts.values()) > 0
    assert clients.parts["generate"] < sum(clients.parts.values()) < clients.seconds * PLAN.slots
    assert len(logged) == 4
    assert ratio([built_in, clients]) == clients.rate / built_in.rate

    total = clients + clients
    assert total.trajectories == 12
    assert total.rate == pytest.approx(clients.rate)
    table = markdown("tiny", PLAN, 2, [built_in, clients])
    assert "**tiny: 4 episodes at once, 6 in all, 2 observations, 12 sampled tokens each, 2 client processes**" in table
    assert f"| {BUILT_IN} | " in table
    assert "| parse the request | " in table


def test_every_id_decodes_to_text() -> None:
    tokens = full_vocabulary(load_tokens(SHAPE, None), SHAPE.vocab_size)
    old = load_tokens(SHAPE, None)
    empty = [token for token in range(SHAPE.vocab_size) if not tokens.decode([token])]
    assert set(empty) == tokens.special_ids
    assert len(tokens.tokenizer) == SHAPE.vocab_size
    text = "Who opened the Juniper Workshop w7?"
    assert tokens.encode(text) == old.encode(text)


def test_command_prints_and_saves_results(tmp_path: Path) -> None:
    words = ["--questions", "2", "--samples", "1", "--turn-tokens", "3", "--observation-tokens", "30", "--warmup", "0"]
    words += ["--prompt-tokens", "40", "--passages", "200", "--rounds", "1", "--clients", "8", "--shape", "tiny"]
    words += ["--engine-memory", "0.01", "--json", str(tmp_path / "kept.json")]
    outcome = CliRunner().invoke(app, ["gateway", *words], catch_exceptions=False)
    assert "| whole call |" in outcome.stdout
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert (kept["shape"], kept["plan"]["slots"], kept["plan"]["steps"]) == ("tiny", 2, 1)
    assert [each["agent"] for each in kept["agents"]] == [BUILT_IN, CLIENTS]
    assert kept["ratio"] == pytest.approx(kept["agents"][1]["rate"] / kept["agents"][0]["rate"])
