"""Predicted seconds next to those measured on an H200, and how they scale."""

from dataclasses import replace

import pytest

from sleuth.bench.planning import choose_settings, predict_step
from sleuth.model.shapes import published_shape
from sleuth.train.accelerators import GPUS, find
from sleuth.train.footprint import ModelSize, Setup
from sleuth.train.step_time import CPU_RATES, GPU_RATES, Episodes, predict_seconds, rates_of

SMALL = ModelSize.of(published_shape("smollm2-135m"))
LARGE = ModelSize.of(published_shape("qwen2.5-3b"))
STEP = Setup(LARGE, GPUS["h200"], 16_128, 18 * 240, 897, slots=320, share=0.2, reference=True)
EPISODES = Episodes(count=320, group=5, updates=2, turns=3, prompt=180, turn=80, observation=240)


def test_episodes_count_their_tokens() -> None:
    assert (EPISODES.sampled, EPISODES.tokens) == (240, 900)


def test_measured_step() -> None:
    """docs/benchmarks.md, bench step, measured at a852bb5."""
    found = predict_seconds(STEP, EPISODES)
    measured = {"generate": 4.71, "score": 2.95, "train": 9.23, "optimiser": 0.09}
    for phase, seconds in measured.items():
        assert getattr(found, phase) == pytest.approx(seconds, rel=0.35), phase
    assert found.total == pytest.approx(17.1, rel=0.1)


@pytest.mark.parametrize(("model", "measured"), [(SMALL, 44.8), (LARGE, 61.8)], ids=["135M", "3B"])
def test_measured_evaluation(model: ModelSize, measured: float) -> None:
    """docs/benchmarks.md, bench evaluate: 5,000 questions on 1,024 slots."""
    found = predict_seconds(replace(STEP, policy=model, slots=1024), replace(EPISODES, count=5000, group=1))
    assert found.generate == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize(
    ("model", "rows", "tokens", "measured"), [(LARGE, 8, 1000, 0.286), (SMALL, 16, 2048, 0.111)], ids=["3B", "135M"]
)
def test_measured_passes(model: ModelSize, rows: int, tokens: int, measured: float) -> None:
    """docs/benchmarks.md, bench train."""
    setup = replace(STEP, policy=model, pack=rows * tokens)
    found = predict_seconds(setup, Episodes(rows, rows, 1, 1, prompt=1, turn=tokens - 1, observation=0))
    assert found.train == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("135M, all weights", 2.52),
        ("0.5B, all weights", 2.57),
        ("0.5B, LoRA", 5.47),
        ("1.5B, LoRA", 10.2),
        ("1.5B, recomputed", 6.92),
        ("1.5B, KL, small packs", 8.67),
        ("3B, half recomputed", 11.3),
    ],
)
def test_measured_plan(name: str, measured: float) -> None:
    """docs/plan.md, bench plan on one H200, measured at b1b0a8e, when packs had 16,384 tokens unless set."""
    ((shape, plan),) = choose_settings([name], 32).values()
    plan = replace(plan, pack_tokens=plan.pack_tokens or 16384)
    setup, episodes = predict_step(published_shape(shape), plan, GPUS["h200"])
    assert predict_seconds(setup, episodes).total == pytest.approx(measured, rel=0.2)


def test_slower_devices_and_settings_take_longer() -> None:
    base = predict_seconds(STEP, EPISODES)
    assert predict_seconds(replace(STEP, device=GPUS["4090"]), EPISODES).total > 3 * base.total
    assert predict_seconds(replace(STEP, recompute=1.0), EPISODES).train > 1.2 * base.train
    assert predict_seconds(replace(STEP, offload=True), EPISODES).optimiser > 10 * base.optimiser
    assert predict_seconds(replace(STEP, rank=32), EPISODES).optimiser < base.optimiser
    assert predict_seconds(replace(STEP, reference=False), EPISODES).score == 0
    assert predict_seconds(replace(STEP, teacher=LARGE), EPISODES).score == pytest.approx(2 * base.score)
    assert predict_seconds(replace(STEP, critic=LARGE), EPISODES).train > 1.8 * base.train


def test_rates_by_device() -> None:
    assert rates_of(STEP) is GPU_RATES
    assert rates_of(replace(STEP, device=find("cpu"))) is CPU_RATES
