"""The recipes of the package say what the systems they are named for did: a table of their figures, and no other."""

import tomllib
from typing import Any

import pytest

from sleuth.config.recipe import SHIPPED, load, resolved, restore, shipped
from sleuth.config.tree import Config

# What most of them share.
SEARCH_R1: dict[str, Any] = {
    "agent.protocol": "tags",
    "agent.searches": 4,
    "agent.turn_tokens": 500,
    "agent.observation_tokens": 500,
    "agent.context_tokens": 4096,
    "retrieval.k": 3,
    "reward.answer": "em",
    "reward.format": False,
    "reward.many_answers": False,
    "algorithm.clip_low": 0.2,
    "algorithm.clip_high": 0.2,
    "algorithm.clip_dual": None,
    "algorithm.entropy": 0.001,
    "algorithm.normalise": "token",
    "algorithm.kl.coefficient": 0.001,
    "train.steps": 500,
    "train.questions": 512,
    "train.learning_rate": 1e-6,
    "train.warmup": 0.285,
    "train.decay": 0.0,
    "train.temperature": 1.0,
    "train.weight_decay": 0.01,
    "train.gradient_clip": 1.0,
}
PPO: dict[str, Any] = {
    **SEARCH_R1,
    "algorithm.advantage": "gae",
    "algorithm.kl.place": "reward",
    "algorithm.kl.estimator": "k1",
    "algorithm.critic.learning_rate": 1e-5,
    "algorithm.critic.rate_warmup": 0.015,
    "algorithm.critic.gamma": 1.0,
    "algorithm.critic.lam": 1.0,
    "algorithm.critic.clip": 0.5,
    "algorithm.critic.warmup": 0,
    "train.samples": 1,
    "train.updates": 2,
}
GRPO: dict[str, Any] = {
    **SEARCH_R1,
    "algorithm.advantage": "grpo",
    "algorithm.kl.place": "loss",
    "algorithm.kl.estimator": "k3",
    "train.samples": 5,
    "train.updates": 10,
}
FIGURES: dict[str, dict[str, Any]] = {
    "search-r1-ppo-qwen2.5-3b": {**PPO, "model.policy": "Qwen/Qwen2.5-3B"},
    "search-r1-ppo-qwen2.5-7b": {**PPO, "model.policy": "Qwen/Qwen2.5-7B"},
    "search-r1-ppo-llama-3.2-3b": {**PPO, "model.policy": "meta-llama/Llama-3.2-3B"},
    "search-r1-grpo-qwen2.5-3b": {**GRPO, "model.policy": "Qwen/Qwen2.5-3B"},
    "search-r1-grpo-qwen2.5-7b": {**GRPO, "model.policy": "Qwen/Qwen2.5-7B"},
    "search-r1-grpo-llama-3.2-3b": {**GRPO, "model.policy": "meta-llama/Llama-3.2-3B"},
    "verl-grpo-qwen2.5-3b": {
        **GRPO,
        "model.policy": "Qwen/Qwen2.5-3B-Instruct",
        "agent.protocol": "tools",
        "agent.searches": 1,
        "agent.turn_tokens": 3000,
        "agent.observation_tokens": 1000,
        "reward.many_answers": True,
        "algorithm.clip_dual": 3.0,
        "algorithm.entropy": 0.0,
        "train.steps": 331,
        "train.updates": 2,
    },
    "slime-grpo-qwen2.5-3b": {
        **GRPO,
        "model.policy": "Qwen/Qwen2.5-3B",
        "agent.searches": 1,
        "agent.turn_tokens": 512,
        "algorithm.clip_high": 0.28,
        "algorithm.entropy": 0.0,
        "algorithm.normalise": "sequence",
        "train.steps": 3000,
        "train.questions": 32,
        "train.samples": 8,
        "train.updates": 1,
        "train.warmup": 0.0,
    },
    "rlinf-grpo-qwen2.5-3b": {
        **GRPO,
        "model.policy": "Qwen/Qwen2.5-3B-Instruct",
        "agent.searches": 1,
        "agent.turn_tokens": 3000,
        "agent.observation_tokens": 1000,
        "algorithm.entropy": 0.0,
        "train.steps": 400,
        "train.samples": 4,
        "train.updates": 2,
        "train.gradient_clip": 0.8,
    },
    "agent-lightning-grpo-llama-3.2-3b": {
        **GRPO,
        "model.policy": "meta-llama/Llama-3.2-3B-Instruct",
        "algorithm.clip_high": 0.3,
        "algorithm.clip_dual": 3.0,
        "algorithm.entropy": 0.0,
        "train.steps": 300,
        "train.samples": 4,
        "train.updates": 2,
        "train.warmup": 0.0,
    },
}


def written(name: str) -> dict[str, Any]:
    """What stands in the file of a recipe."""
    return tomllib.loads((SHIPPED / f"{name}.toml").read_text())


def value(config: Config, key: str) -> object:
    """What a config has under a dotted key."""
    found: Any = config
    for name in key.split("."):
        found = getattr(found, name)
    return found


def test_every_recipe_but_the_quickstarts_is_in_the_table() -> None:
    assert {*FIGURES, "quickstart", "quickstart-hard", "quickstart-tools"} == set(shipped())


@pytest.mark.parametrize("name", FIGURES)
def test_recipe_has_the_figures_of_the_table(name: str) -> None:
    config = load(name)
    assert {key: value(config, key) for key in FIGURES[name]} == FIGURES[name]


@pytest.mark.parametrize("name", FIGURES)
def test_mini_batches_and_processes_come_out_even(name: str) -> None:
    train = load(name).train
    assert train.questions * train.samples % train.updates == 0
    assert train.questions % 8 == 0


@pytest.mark.parametrize("name", FIGURES)
def test_recipe_expects_plain_files_below_the_data_folder(name: str) -> None:
    files = load(name).data
    assert (files.train, files.test) == tuple(f"data/search-r1/{part}/questions.jsonl" for part in ("train", "test"))


@pytest.mark.parametrize("name", FIGURES)
def test_index_folder_can_stand_for_the_server(name: str) -> None:
    assert load(name, ["retrieval.index=data/index"]).retrieval.local


@pytest.mark.parametrize("name", FIGURES)
def test_recipe_on_a_base_is_saved_whole(name: str) -> None:
    config = load(name)
    assert restore(resolved(config)) == config


@pytest.mark.parametrize("name", [name for name in FIGURES if "base" in written(name)])
def test_recipe_says_nothing_again_that_its_base_says(name: str) -> None:
    upper = written(name)
    lower = written(upper.pop("base"))
    assert set(leaves(upper)).isdisjoint(leaves(lower))


@pytest.mark.parametrize("name", FIGURES)
def test_recipe_begins_with_its_source_and_its_differences(name: str) -> None:
    lines = (SHIPPED / f"{name}.toml").read_text().splitlines()
    head = " ".join(line.removeprefix("#") for line in lines[: lines.index(f'name = "{name}"')])
    assert "base" in head or ("Figures:" in head and "What differs:" in head)
    assert "Published" in head or "llama" in name


def leaves(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted keys and values of a tree."""
    return [
        leaf
        for key, each in tree.items()
        for leaf in (leaves(each, f"{prefix}{key}.") if isinstance(each, dict) else [(prefix + key, each)])
    ]
