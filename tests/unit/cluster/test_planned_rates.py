"""Rates from the planner beside what the planner itself predicts."""

from statistics import mean

import pytest

from sleuth.cluster.planned_rates import BROADCAST, NETWORK, NVLINK, fits, plan_rates, typical_groups
from sleuth.cluster.scenario import describe_scenario
from sleuth.cluster.simulation import predict
from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.model.shapes import published_shape
from sleuth.train.accelerators import GPUS
from sleuth.train.footprint import ModelSize
from sleuth.train.plan import Models, describe, longest_episodes, typical_episodes
from sleuth.train.step_time import predict_seconds

H200 = GPUS["h200"]


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(ModelSize.of(published_shape("qwen2.5-3b")))


def search_r1(*settings: str) -> Config:
    return recipe.load("search-r1-grpo-qwen2.5-3b", settings)


def test_one_gpu_takes_the_seconds_of_the_plan(models: Models) -> None:
    """Without latency, the simulation of one GPU is the planner's step; lengths vary, so the rollouts take longer."""
    config = search_r1("train.questions=64", "engine.slots=320")
    episodes = typical_episodes(config)
    planned = predict_seconds(describe(config, H200, models, episodes), episodes)
    rates = plan_rates(config, H200, models)
    found = predict(describe_scenario(config, "cuda"), rates)
    assert found.trainer["train"] * found.step_seconds == pytest.approx(
        planned.train + planned.score + planned.optimiser, rel=0.05
    )
    assert planned.generate < found.trainer["idle"] * found.step_seconds < 2 * planned.generate


def test_typical_lengths_on_average() -> None:
    config = search_r1()
    episodes = typical_episodes(config)
    drawn = [each for group in typical_groups(episodes, longest_episodes(config)) for each in group]
    assert mean(each.sampled for each in drawn) == pytest.approx(episodes.sampled, rel=0.03)
    assert mean(each.tokens for each in drawn) == pytest.approx(episodes.tokens, rel=0.03)
    assert len({each.sampled for each in drawn}) > 100
    assert all(turn.sampled <= 500 for each in drawn for turn in each.turns)


def test_weights_travel_by_the_slowest_link(models: Models) -> None:
    config = search_r1()
    shared, separate = (plan_rates(config, H200, models, trainers=8, separate=each) for each in (False, True))
    assert (shared.transfer, separate.transfer) == (NVLINK, BROADCAST)
    assert separate.weights == 2 * models.policy.parameters
    many = plan_rates(config, H200, models, trainers=16, separate=True)
    assert many.pack_seconds == pytest.approx(shared.pack_seconds * NVLINK / NETWORK)
    assert plan_rates(config, H200, models).pack_seconds == 0


def test_a_rank_with_less_than_a_pack_needs_one(models: Models) -> None:
    """Trainers that share an update have less than a pack each, and still one set of collectives."""
    rates = plan_rates(search_r1(), H200, models, trainers=64, separate=True)
    tokens = 2560 * 900
    assert rates.train_seconds(1.1 * tokens, 0, 64, 10) == pytest.approx(10 * rates.pack_seconds + rates.step)


def test_adapters_alone_are_sent(models: Models) -> None:
    adapter = plan_rates(search_r1("model.lora.rank=16"), H200, models, separate=True)
    assert adapter.weights < 0.05 * 2 * models.policy.parameters


def test_what_fits(models: Models) -> None:
    config = search_r1()
    assert fits(config, H200, models, 1, separate=True)
    assert not fits(config, GPUS["4090"], models, 1, separate=True)
