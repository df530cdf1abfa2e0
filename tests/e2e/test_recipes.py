"""Every recipe of the package trains two steps: a tiny model of its architecture, a generated world, smaller sizes."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sleuth.agent.tags import Tags
from sleuth.cli.main import app
from sleuth.config import recipe
from sleuth.config.retrieval import IndexPlan
from sleuth.config.tree import Config
from sleuth.corpus.questions import CORPUS, TEST, TRAIN
from sleuth.retrieval import index
from sleuth.runs.run import Run
from sleuth.sft.quickstart_policy import build_tokenizer
from sleuth.synthesis.world.world import World, write_world

pytestmark = pytest.mark.e2e

RECIPES = [name for name in recipe.shipped() if not name.startswith("quickstart")]  # those have their own models
# Sizes, and nothing else; of samples and mini-batches two are left, or the one that there is.
SIZES = {
    "train.steps": 2,
    "train.questions": 2,
    "train.threads": 1,
    "engine.slots": 8,
    "agent.turn_tokens": 8,
    "agent.observation_tokens": 48,
    "agent.context_tokens": 1600,
    "evaluate.questions": 2,
}
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
# The architecture that a name on the hub stands for, and whether its tokenizer has a chat template.
MODELS = {
    "Qwen/Qwen2.5-3B": ("qwen2", True),
    "Qwen/Qwen2.5-3B-Instruct": ("qwen2", True),
    "Qwen/Qwen2.5-7B": ("qwen2", True),
    "meta-llama/Llama-3.2-3B": ("llama", False),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama", True),
}
# A chat with function calls in the form of Qwen2.5.
CHAT = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for message in messages %}{% if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ message.content }}\n</tool_response><|im_end|>\n{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Stage:
    """What all recipes are run on: models by name, questions, and an index of the world they are about."""

    models: dict[str, Path]
    questions: Path
    index: Path

    def settings(self, config: Config) -> list[str]:
        """The recipe's files and model, and its sizes, as a user would change them."""
        sizes = SIZES | {"train.updates": min(2, config.train.updates), "train.samples": min(2, config.train.samples)}
        places = {
            "model.policy": self.models[config.model.policy],
            "data.train": self.questions / TRAIN,
            "data.test": self.questions / TEST,
            "retrieval.index": self.index,
        }
        return [f"{key}={value}" for key, value in (sizes | places).items()]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    home = tmp_path_factory.mktemp("stage")
    write_world(World(200, 0), home / "world", 20, 5)
    index.build(home / "world" / CORPUS, home / "index", IndexPlan.of("bm25"))
    folders = {kind: model(home, *kind) for kind in set(MODELS.values())}
    return Stage({name: folders[kind] for name, kind in MODELS.items()}, home / "world", home / "index")


def model(home: Path, family: str, chats: bool) -> Path:
    """The folder of a tiny random model with a tokenizer."""
    words = build_tokenizer([Tags.instruction, (home / "world" / CORPUS).read_text()[:20_000]])
    if chats:
        words.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        words.chat_template = CHAT
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, **SMALL, vocab_size=len(words), bos_token_id=None, eos_token_id=words.eos_token_id
    )
    folder = home / f"{family}-{'chat' if chats else 'plain'}"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_trains_two_steps(name: str, stage: Stage, tmp_path: Path) -> None:
    settings = [word for each in stage.settings(recipe.load(name)) for word in ("--set", each)]
    app(["train", name, "--out", str(tmp_path / "run"), *settings], standalone_mode=False)
    run = Run.open(tmp_path / "run")
    config = recipe.restore(run.manifest()["config"])
    begun, *steps = run.metrics()
    assert [row["step"] for row in steps] == [1, 2]
    assert begun["evaluate/em"] >= 0
    for row in steps:
        assert all(math.isfinite(value) for value in row.values())
        assert row["episode/tokens"] > 0
        assert row["policy/learning_rate"] == pytest.approx(config.train.learning_rate)
        assert "policy/kl" in row
        assert ("critic/loss" in row) == (config.algorithm.advantage == "gae")
    assert (run.path / "report.html").is_file()
