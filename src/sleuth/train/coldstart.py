"""The quickstart's policy: a small causal model that knows the grammar, and has the search still to learn.

First it reads experts, so that it can copy names and follow a chain of two. Then it sees people of mixed quality, most
of whom guess, so that what pays is there to be found but is not what it does. No demonstration takes three hops.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from sleuth.agent.protocol import Tags
from sleuth.corpus.world.names import words
from sleuth.corpus.world.world import Posed, World
from sleuth.evaluate.suite import Evaluation
from sleuth.model import attention
from sleuth.model.tokens import Tokens
from sleuth.runs import replacing
from sleuth.train import ceiling, sft, vocabulary
from sleuth.train.packing import Row
from sleuth.train.policy import Policy
from sleuth.train.traces import BEHAVIOURS, Demonstrator, acted, compares, expert

Progress = Callable[[str, int, int, float], None]
Worlds = list[World]
Questions = list[list[Posed]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of the model and of the two phases; the shipped weights come from these."""

    seed: int = 0
    width: int = 192
    layers: int = 3
    heads: int = 6
    key_heads: int = 2
    inner: int = 384
    passages: int = 2000
    worlds: int = 8
    rows: int = 48
    drills: int = 24
    expert_steps: int = 2500
    mixed_steps: int = 150
    learning_rate: float = 2e-3
    mixed_rate: float = 5e-4
    reading: float = 0.1
    experts: Mapping[str, float] = field(default_factory=lambda: {"expert": 0.7, "detour": 0.3})
    mixed: Mapping[str, float] = field(
        default_factory=lambda: {"guess": 0.6, "stray": 0.1, "hasty": 0.15, "expert": 0.15}
    )


def make(plan: Plan, out: Path, progress: Progress) -> Evaluation:
    """Writes the model folder, with the expert's ceiling beside the weights; returns that ceiling."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceilings: list[Evaluation] = []
    with replacing(out) as folder:
        policy = cold_start(plan, device, lambda expert: ceilings.append(ceiling.measure(expert)), progress)
        policy.save(folder)
        found = json.dumps(ceiling.as_json(ceilings[0]) | {"seed": plan.seed}, indent=2)
        (folder / ceiling.FILE).write_text(found + "\n", encoding="utf-8")
    return ceilings[0]


def cold_start(plan: Plan, device: torch.device, expert_done: Callable[[Policy], None], progress: Progress) -> Policy:
    """Trains the policy from nothing; `expert_done` is handed it between the two phases."""
    torch.manual_seed(plan.seed)
    worlds = [World(plan.passages, 1000 * (plan.seed + 1) + number) for number in range(plan.worlds)]
    posed = [list(world.pose("train", 3000)) for world in worlds]
    tokens = Tokens(vocabulary.tokenizer(_texts(plan, worlds, posed)))
    policy = Policy(model(plan, len(tokens.tokenizer), device), tokens)
    _learn(plan, "expert", policy, worlds, posed, progress)
    expert_done(policy)
    _learn(plan, "mixed", policy, worlds, posed, progress)
    return policy


def _learn(plan: Plan, phase: str, policy: Policy, worlds: Worlds, posed: Questions, progress: Progress) -> None:
    steps, rate, mixture = {
        "expert": (plan.expert_steps, plan.learning_rate, plan.experts),
        "mixed": (plan.mixed_steps, plan.mixed_rate, plan.mixed),
    }[phase]
    batches = _batches(plan, phase, worlds, posed, policy.tokens, mixture)
    sft.fit(policy, batches, steps=steps, learning_rate=rate, done=_reporter(progress, phase, steps))


def model(plan: Plan, vocabulary_size: int, device: torch.device) -> PreTrainedModel:
    """An ordinary Llama, small enough for two CPU cores."""
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=plan.width,
        intermediate_size=plan.inner,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.heads,
        num_key_value_heads=plan.key_heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    made = AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME)
    return cast(PreTrainedModel, made.to(device))


def _batches(
    plan: Plan, phase: str, worlds: Worlds, posed: Questions, tokens: Tokens, mixture: Mapping[str, float]
) -> Iterator[list[Row]]:
    """Demonstrations drawn from the mixture, and drills in comparing, without end."""
    dice = random.Random(f"{plan.seed}/{phase}")
    demonstrators = [Demonstrator(world, tokens, Tags(), "brief", plan.reading) for world in worlds]
    comparisons = [[each for each in asked if compares(each)] for asked in posed]
    behaviours, shares = list(mixture), list(mixture.values())
    while True:
        rows: list[Row] = []
        for _ in range(plan.rows):
            number = dice.randrange(plan.worlds)
            asked = dice.choice(posed[number])
            script = BEHAVIOURS[dice.choices(behaviours, shares)[0]](asked, worlds[number], dice)
            rows.append(demonstrators[number].row(asked, script))
        for _ in range(plan.drills):
            number = dice.randrange(plan.worlds)
            rows.append(demonstrators[number].drill(dice.choice(comparisons[number])))
        yield rows


def _texts(plan: Plan, worlds: Worlds, posed: Questions) -> Iterator[str]:
    """Text that holds every word the tokenizer should know whole."""
    protocol, dice = Tags(), random.Random(0)
    yield "".join(f" {word}" for word in words(plan.passages))
    yield "".join(f" {year}" for year in range(1800, 2000))
    yield " Yes No yes no That does not help. must be it. I know this. are the same different came before"
    yield protocol.instruction
    for world, asked in zip(worlds, posed, strict=True):
        yield from (passage.contents for passage in world.passages())
        for each in asked:
            yield f"Question: {each.question.question}\n"
            yield from (acted(move, protocol) for move in expert(each, world, dice))
    yield " ".join(f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/"))
    yield "\n\n<information>Doc 1(Title: No action was taken: nothing found.\n</information>\n\n"


def _reporter(progress: Progress, phase: str, steps: int) -> Callable[[int, float], None]:
    return lambda step, loss: progress(phase, step + 1, steps, loss)
