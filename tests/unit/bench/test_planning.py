"""Predicted against measured: the settings, a real step on this machine, and failures as rows."""

from dataclasses import replace

import pytest
import torch

from sleuth.bench.episodes import Plan
from sleuth.bench.planning import SETTINGS, Comparison, PeakTimer, choose_settings, markdown, measure, predict_step
from sleuth.errors import ConfigError
from sleuth.model.shapes import published_shape
from sleuth.train.accelerators import GPUS
from sleuth.train.footprint import MAX_PACK_TOKENS, predict

SMALL = Plan(
    questions=2, samples=2, searches=1, prompt_tokens=40, turn_tokens=4, observation_tokens=20, update=4, kl=False,
    pack_tokens=400, slots=4, warmup=2, passages=200,
)  # fmt: skip


def test_settings_by_name() -> None:
    assert list(choose_settings(None, 4)) == list(SETTINGS)
    (name, (shape, plan)), = choose_settings(["0.5B, LoRA"], 4).items()  # fmt: skip
    assert (name, shape, plan.lora, plan.questions, plan.slots) == ("0.5B, LoRA", "qwen2.5-0.5b", 32, 4, 32)
    with pytest.raises(ConfigError, match=r"'70B'.*135M, all weights"):
        choose_settings(["70B"], 4)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_fits_an_h200(name: str) -> None:
    shape, plan = choose_settings([name], 32)[name]
    setup, episodes = predict_step(published_shape(shape), plan, GPUS["h200"])
    assert predict(setup).needed < GPUS["h200"].memory
    assert (episodes.count, episodes.tokens) == (256, 900)
    assert setup.pack <= (plan.pack_tokens or MAX_PACK_TOKENS)


def test_a_step_is_run_and_compared() -> None:
    logged: list[str] = []
    found = measure("tiny", "tiny", SMALL, logged.append)
    assert found.failure == ""
    assert set(found.measured_seconds) == {"generate", "score", "train", "optimiser"}
    assert all(seconds > 0 for phase, seconds in found.measured_seconds.items() if phase != "score")
    assert (found.measured_gib, found.measured_device_gib) == ({}, None)  # no GPU
    assert set(found.predicted_gib) == {"generate", "train", "optimiser"}
    assert logged[0].startswith("tiny: ")
    assert "| tiny |" in markdown([found])


def test_a_failure_is_a_row() -> None:
    found = measure("long", "tiny", replace(SMALL, turn_tokens=8000), print)
    assert "8192 positions" in found.failure
    assert "8192 positions" in markdown([found])


def test_errors_are_relative_to_what_was_measured() -> None:
    sizes = {"generate": 5.0, "train": 11.0}, {"generate": 4.0, "train": 10.0}
    row = Comparison("x", *sizes, 12.0, 15.0, {"train": 2.0}, {"train": 4.0})
    first, second = markdown([row]).split("\n\n**Phases**")
    assert "| x | 11 | 10 | +10% | 12 | 15 | -20% | 2 | 4 | -50% |" in first
    assert "| x: train | 11 | 10 | +10% | 2 | 4 | -50% |" in second


@pytest.mark.gpu
def test_peaks_of_the_phases_are_recorded() -> None:
    timer = PeakTimer(torch.device("cuda", 0))
    with timer.time("train"):
        torch.empty(1 << 28, device="cuda")
    with timer.time("optimiser"):
        pass
    assert timer.peaks["train"] >= timer.peaks["optimiser"] + 0.2


@pytest.mark.gpu
def test_prediction_on_this_gpu() -> None:
    shape, plan = choose_settings(["135M, all weights"], 16)["135M, all weights"]
    found = measure("135M", shape, plan, print)
    assert max(found.predicted_gib.values()) == pytest.approx(max(found.measured_gib.values()), rel=0.1)
