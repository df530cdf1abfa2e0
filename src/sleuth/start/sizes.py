"""Settings that `sleuth start` chooses for a model and a machine, and the recipe that records them."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch

from sleuth.config.recipe import resolve_policy
from sleuth.errors import InputError
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import read_json

RECIPE = "recipe.toml"
SEARCHES = 4
# Above 0, a policy that is seldom right learns to abstain from every question (docs/log.md).
ABSTAIN = 'abstain = 0.0              # reward of "I don\'t know" to an answerable question; 1 to an unanswerable one'
SHORT_CONTEXT = 2048  # models with fewer positions get short prompts and one passage per search


@dataclass(frozen=True, slots=True)
class Sizes:
    """Settings that depend on the model's context length and the device."""

    k: int
    prompt: str
    context: int
    turn_tokens: int
    observation_tokens: int
    epochs: int
    sft_rate: float
    pack_tokens: int
    questions: int
    samples: int
    steps: int
    rate: float
    slots: int
    difficulty_samples: int
    resample: int

    @property
    def alone(self) -> tuple[str, ...]:
        """Settings to evaluate the model without documents."""
        room = (f"agent.turn_tokens={self.turn_tokens}", f"agent.context_tokens={self.context}")
        return (*room, f"engine.slots={self.slots}")

    @property
    def agent(self) -> tuple[str, ...]:
        """Settings of the agent before its training, the same as in the recipe."""
        return (
            *self.alone,
            f"agent.prompt={self.prompt}",
            f"agent.searches={SEARCHES}",
            f"agent.observation_tokens={self.observation_tokens}",
            f"retrieval.k={self.k}",
        )

    @property
    def training(self) -> tuple[str, ...]:
        """Training settings that determine memory and time."""
        return (
            f"train.questions={self.questions}",
            f"train.samples={self.samples}",
            f"train.steps={self.steps}",
            f"train.pack_tokens={self.pack_tokens}",
        )

    @property
    def rag(self) -> tuple[str, ...]:
        """Settings to evaluate a model with RAG; the documents get the room that the prompt leaves."""
        room = self.context - self.turn_tokens - self.context // 8
        return (*self.alone, f"retrieval.k={self.k}", f"agent.observation_tokens={room}")


def choose_sizes(model: str, steps: int | None = None) -> Sizes:
    """Choose settings for a model on this machine."""
    positions = read_json(resolve_policy(model) / "config.json").get("max_position_embeddings") or 4096
    short, gpu = positions <= SHORT_CONTEXT, torch.cuda.is_available()
    return Sizes(
        k=1 if short else 3,
        prompt="brief" if short else "instruct",
        context=min(positions, 1024 if short else 4096),
        turn_tokens=96 if short else 160,
        observation_tokens=256 if short else 700,
        epochs=2,  # questions that are memorised leave reinforcement learning nothing to learn
        sft_rate=2e-4 if gpu else 5e-4,
        pack_tokens=32768 if gpu else 4096,
        questions=64 if gpu else 8,
        samples=8 if gpu else 4,
        steps=steps or (80 if gpu else 20),
        rate=2e-5 if gpu else 1e-4,
        slots=512 if gpu else 32,
        difficulty_samples=4 if gpu else 2,
        resample=1 if gpu else 0,
    )


def write_recipe(folder: Path, sizes: Sizes, *, abstain: bool, seed: int) -> None:
    """Write the recipe of the training; raises InputError if a part has too few questions to train or measure."""
    counts = {name: _count_lines(folder / "parts" / f"{name}.jsonl") for name in ("train", "validation", "test")}
    if counts["train"] < sizes.questions or not counts["validation"] or not counts["test"]:
        found = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        raise InputError(
            f"too few questions were made ({found}; training needs at least {sizes.questions} for train, and some for "
            f"the others); start with another --out, or remove {folder}, and give more documents, or a language model "
            "that writes questions: --teacher URL|FOLDER"
        )
    text = f"""\
# Written by `sleuth start`. Edit it before training begins, or delete {RECIPE} to have it written again.
name = "start"

[model]
policy = {_quoted(folder / "cold-start")}

[data]
train = {_quoted(folder / "difficulty.jsonl")}
test = {_quoted(folder / "parts" / "validation.jsonl")}

[retrieval]
index = {_quoted(folder / "index")}
k = {sizes.k}

[agent]
prompt = "{sizes.prompt}"
searches = {SEARCHES}
turn_tokens = {sizes.turn_tokens}
observation_tokens = {sizes.observation_tokens}
context_tokens = {sizes.context}
{"[reward]" if abstain else ""}
{ABSTAIN if abstain else ""}
[engine]
slots = {sizes.slots}

[algorithm]
advantage = "grpo"
clip_high = 0.28
negative_weight = 0.6

[train]
steps = {sizes.steps}
questions = {min(sizes.questions, counts["train"])}
samples = {sizes.samples}
resample = {sizes.resample}
learning_rate = {sizes.rate:g}
warmup = 0.05
decay = 0.5
pack_tokens = {sizes.pack_tokens}
save_every = {max(1, sizes.steps // 4)}
keep = 1
seed = {seed}

[evaluate]
questions = {min(200, counts["validation"])}
every = {max(1, sizes.steps // 4)}
"""
    tomllib.loads(text)
    with atomic_write(folder / RECIPE) as path:
        path.write_text(text, encoding="utf-8")


def _count_lines(path: Path) -> int:
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
