"""Plans: settings translated, options that really fit, and runs that are refused before weights are loaded."""

import json
from pathlib import Path

import pytest
import torch

from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.errors import ConfigError
from sleuth.model.memory import host_memory
from sleuth.model.shapes import SHAPES, published_shape, shape_of_folder
from sleuth.train.accelerators import GIB, GPUS, find
from sleuth.train.footprint import ModelSize, predict
from sleuth.train.plan import Models, Plan, _apply, describe, longest_episodes, make_plan, require_fits

LARGE = Models(ModelSize.of(published_shape("qwen2.5-3b")))


def config_of(*settings: str) -> Config:
    return recipe.compose({"model": {"policy": "some/model"}, "world": {}}, settings)


def plan_of(gpu: str, *settings: str, models: Models = LARGE, ranks: int = 1) -> Plan:
    return make_plan(config_of(*settings), find(gpu), models, ranks=ranks)


def test_settings_are_translated() -> None:
    settings = (
        "train.pack_tokens=8192", "train.recompute=0.5", "train.optimiser=adamw8bit", "train.offload=true",
        "model.lora.rank=8", "model.lora.targets=q_proj", "engine.slots=64", "engine.memory=0.1",
        "engine.prefill_tokens=100", "agent.context_tokens=2048", "algorithm.kl.place=loss", "algorithm.old=recompute",
    )  # fmt: skip
    setup = plan_of("h200", *settings).setup
    assert (setup.pack, setup.recompute, setup.optimiser, setup.offload) == (8192, 0.5, "adamw8bit", True)
    assert (setup.rank, setup.targets, setup.slots, setup.share, setup.prefill) == (8, "q_proj", 64, 0.1, 100)
    assert (setup.context, setup.reference, setup.scores_old, setup.critic) == (2048, True, True, None)
    assert (setup.engine, setup.half, setup.ranks) == ("shared", True, 1)


@pytest.mark.parametrize(
    ("settings", "ranks", "engine"),
    [
        ((), 1, "shared"),
        ((), 2, "copy"),
        (("train.mode=ahead", "algorithm.correction.level=token"), 1, "copy"),
        (("train.mode=async", "algorithm.correction.level=token"), 1, "copy"),
        (("train.mode=async", "train.staleness=0"), 1, "shared"),
        (("engine.kind=vllm",), 1, "server"),
        (("engine.kind=vllm", "engine.url=http://127.0.0.1:8000"), 1, "elsewhere"),
    ],
)
def test_where_the_engine_has_its_weights(settings: tuple[str, ...], ranks: int, engine: str) -> None:
    assert plan_of("h200", *settings, ranks=ranks).setup.engine == engine


def test_critic_is_the_policy_unless_another_is_given() -> None:
    assert plan_of("h200", "algorithm.advantage=gae").setup.critic is LARGE.policy
    small = ModelSize.of(published_shape("tiny"))
    models = Models(LARGE.policy, small)
    assert plan_of("h200", "algorithm.advantage=gae", models=models).setup.critic is small
    assert plan_of("h200", models=models).setup.critic is None


def test_teacher_is_counted() -> None:
    teacher = ModelSize.of(published_shape("tiny"))
    found = Models.of(
        config_of("algorithm.teacher.policy=teacher"),
        lambda name: published_shape("tiny" if name == "teacher" else "qwen2.5-3b"),
    )
    assert (found.policy, found.critic, found.teacher) == (LARGE.policy, None, teacher)
    assert plan_of("h200", models=found).setup.teacher == teacher
    assert plan_of("h200").setup.teacher is None


def test_small_batches_do_not_fill_a_pack() -> None:
    config = config_of("train.questions=2", "train.samples=2", "agent.context_tokens=1000", "train.updates=1")
    setup = describe(config, GPUS["h200"], LARGE, longest_episodes(config))
    assert 3900 < setup.pack <= 4000
    assert setup.scored < setup.pack


def test_a_long_episode_exceeds_the_pack() -> None:
    assert plan_of("h200", "train.pack_tokens=100").setup.pack >= 4000


TREES = ("train.samples=6", "train.tree.trees=2", "train.tree.branches=2", "train.pack_tokens=1024")


def test_a_tree_is_never_split() -> None:
    alone, trees = plan_of("h200", "train.pack_tokens=1024"), plan_of("a100-40", *TREES)
    assert trees.setup.pack == 3 * alone.setup.pack
    assert trees.footprint.phases["train"] > alone.footprint.phases["train"]
    # A pack below the size of a tree saves nothing, so no option proposes it.
    assert trees.options
    sizes = [option.settings.get("train.pack_tokens") for option in trees.options]
    assert all(size is None or size >= 3 * trees.setup.context for size in sizes)


def test_information_gain_is_a_scoring_pass() -> None:
    settings = ("algorithm.old=engine", "train.pack_tokens=16384")
    without, gain = plan_of("h200", *settings), plan_of("h200", *settings, "algorithm.information_gain.coefficient=0.2")
    assert "score" not in without.footprint.phases
    assert gain.footprint.phases["score"] > gain.footprint.phases["optimiser"]
    assert (without.seconds.score, gain.seconds.score > 0) == (0, True)


def test_options_fit_and_cost_more_and_more() -> None:
    plan = plan_of("a100-80")
    assert (plan.fits, plan.verdict) == (False, "does not fit")
    assert len(plan.options) >= 4
    for option in plan.options:
        needed = predict(_apply(plan.setup, option.settings)).needed
        assert needed == option.footprint.needed
        assert needed < plan.capacity
        # The settings are those of a recipe, and describe the same run.
        again = plan_of("a100-80", *(f"{key}={str(value).lower()}" for key, value in option.settings.items()))
        assert again.fits
        assert again.footprint.needed == pytest.approx(needed, rel=0.02)
    keys = [set(option.settings) for option in plan.options]
    first_lora = next(index for index, each in enumerate(keys) if "model.lora.rank" in each)
    assert all("model.lora.rank" in each for each in keys[first_lora:])


def test_what_fits_has_no_options() -> None:
    plan = plan_of("h200")
    assert (plan.fits, plan.options) == (True, ())


def test_nothing_makes_it_fit() -> None:
    seven = Models(ModelSize.of(published_shape("qwen2.5-7b")))
    assert plan_of("t4", models=seven).options == ()


def test_several_gpus_share_the_optimiser() -> None:
    alone, eight = (plan_of("a100-80", ranks=ranks) for ranks in (1, 8))
    assert eight.footprint.needed < alone.footprint.needed
    assert not any({"train.offload", "train.optimiser"} & set(each.settings) for each in eight.options)


def test_gpu_without_bfloat16_is_named() -> None:
    assert ["model.dtype=float32" in each for each in plan_of("t4").warnings] == [True]
    assert plan_of("t4", "model.dtype=float32").warnings == ()


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """A model folder without weights, whose model needs ten times the memory of this machine."""
    width = 16_384
    layers = int(10 * host_memory()[0] / (16 * 12 * width**2)) + 1
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
    (tmp_path / "config.json").write_text(json.dumps({**SHAPES["qwen2.5-3b"], **sizes}))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def test_a_run_that_cannot_fit_is_refused(huge: Path) -> None:
    with pytest.raises(ConfigError, match=r"GiB in the phase \w+, but .* GiB are free") as caught:
        require_fits(config_of(f"model.policy={huge}"), torch.device("cpu"))
    assert str(huge) in str(caught.value)


def test_the_refusal_has_the_setting_that_would_fit() -> None:
    """A model for which only the packs are too large."""
    free = host_memory()[1]
    layers = SHAPES["tiny"]["num_hidden_layers"]
    tokens = int(4 * free / (4 * layers * 1286))
    config = config_of(
        "model.policy=quickstart", f"train.pack_tokens={min(tokens, 2**23)}", "train.questions=50000",
        "train.samples=8", "agent.context_tokens=512", "agent.turn_tokens=64", "agent.observation_tokens=96",
        "engine.memory=0.01",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"it fits with .*--set train.pack_tokens=\d+"):
        require_fits(config, torch.device("cpu"))


def test_the_quickstart_fits() -> None:
    config = recipe.load("quickstart")
    assert require_fits(config, torch.device("cpu")) is None
    # 1.12 GiB were measured (docs/quickstart.md).
    models = Models.of(config, lambda name: shape_of_folder(recipe.resolve_policy(name)))
    assert make_plan(config, find("cpu"), models).footprint.needed / GIB == pytest.approx(1.1, rel=0.1)
