"""Ours and a peer play the same episodes, and the table says what came of it."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig

from sleuth.bench import engine
from sleuth.bench.rollouts import Comparison, Peer, Rates, Row, Theirs, best_settings, compare, table
from sleuth.bench.workloads import Job, Sizes, Turn, Workload, jobs
from sleuth.errors import EngineFailure

SIZES = Sizes(group=2, prompt=9, new=4, observation=5)
JOBS = jobs(list(Workload), [3], SIZES)


@pytest.fixture(scope="module")
def shape() -> PretrainedConfig:
    """Small, and with so few tokens that one that ends a text would be sampled soon."""
    return LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=[0, 1, 2, 3],
        architectures=["LlamaForCausalLM"],
    )


def played(shape: PretrainedConfig, asked: Sequence[Job], beside: Peer | None) -> tuple[Comparison, list[str]]:
    heard: list[str] = []
    found = compare("small", shape, asked, repetitions=2, beside=beside, settings={}, heard=heard.append)
    return found, heard


def test_ours_alone(shape: PretrainedConfig) -> None:
    found, heard = played(shape, JOBS, None)
    assert [row.job for row in found.rows] == JOBS
    for row in found.rows:
        assert row.ours.sampled == row.job.sampled
        assert len(row.ours.seconds) == 2
        assert all(0 < seconds < 60 for seconds in row.ours.seconds)
        assert (row.theirs, row.ratio) == ("not asked", "-")
    assert heard[0].startswith("small, single, 3 concurrent, ours: ")


def test_a_peer_that_is_not_installed_is_said_in_its_row(shape: PretrainedConfig) -> None:
    found, _ = played(shape, JOBS[:1], Peer(sys.executable))
    assert [row.theirs for row in found.rows] == ["not installed"]
    assert found.theirs == Theirs(absence="not installed")


def test_a_peer_that_dies_leaves_our_figures_and_its_reason(shape: PretrainedConfig, tmp_path: Path) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\necho 'no GPU is left' >&2\nexit 3\n")
    dying.chmod(0o755)
    found, heard = played(shape, JOBS[:1], Peer(str(dying), {"block_size": 32}))
    assert [row.theirs for row in found.rows] == ["failed"]
    assert found.rows[0].ours.best > 0
    assert "no GPU is left" in found.theirs.failure
    assert heard[0] == found.theirs.failure
    assert found.theirs.settings == {**best_settings(3, 13 + 16), "block_size": 32}


def test_the_weights_are_random_finite_and_never_end_a_text(shape: PretrainedConfig) -> None:
    model = engine.drawn(shape, torch.device("cpu"))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert model.generation_config is not None
    assert model.generation_config.eos_token_id is None
    assert next(model.parameters()).dtype == torch.float32


def test_an_engine_that_cannot_sample_all_is_not_believed(shape: PretrainedConfig) -> None:
    with (
        engine.opened(shape, 1, 12, torch.device("cpu"), {}) as ours,
        pytest.raises(EngineFailure, match="3 tokens were sampled, 5 were asked for"),
    ):
        ours.seconds([(Turn((1,) * 9, 5),)])


def test_a_closed_engine_says_so(shape: PretrainedConfig) -> None:
    with engine.opened(shape, 1, 32, torch.device("cpu"), {}) as ours:
        assert ours.seconds([(Turn((1, 2), 3),)]) > 0
    with pytest.raises(EngineFailure, match="closed"):
        ours.seconds([(Turn((1, 2), 3),)])


def test_the_best_counts_and_the_spread_is_told() -> None:
    job = Job(Workload.GROUPS, 2, SIZES)
    rows = [
        Row("a", job, Rates(8, (0.5, 0.4, 0.8)), Rates(8, (1.6, 2.0))),
        Row("b", job, Rates(8, (0.5,)), "failed"),
    ]
    assert table(rows, "as asked", 3).markdown().splitlines() == [
        "**Sampled tokens a second, as asked, random weights, logprobs on, best of 3**",
        "",
        "| shape | workload | concurrent | ours | spread | vLLM | spread | times as fast |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| a | groups | 2 | 20 | 50.0% | 5 | 20.0% | 4 |",
        "| b | groups | 2 | 16 | 0.0% | failed | - | - |",
    ]


def test_vllm_gets_graphs_for_every_batch() -> None:
    assert best_settings(1024, 500)["max_cudagraph_capture_size"] == 1024
    assert best_settings(64, 500)["max_cudagraph_capture_size"] == 512
