"""The quickstart's policy: a small causal model that knows the grammar, and has the search still to learn.

First it reads experts, so that it can copy names and follow a chain of two, with drills in setting two facts against
each other. Then it sees people of mixed quality, most of whom guess, so that what pays is there to be found but is not
what it does. No demonstration takes three hops.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from sleuth.agent.tags import Tags
from sleuth.evaluate.results import Evaluation
from sleuth.model import attention
from sleuth.model.packing import Row
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs.atomic import atomic_write
from sleuth.sft import quickstart_tokenizer as vocabulary
from sleuth.sft import step as sft
from sleuth.sft.demonstrations import BEHAVIOURS, Demonstrator, acted, compares, expert
from sleuth.synthesis.world.names import name_words
from sleuth.synthesis.world.world import World, WorldQuestion
from sleuth.train import ceiling

Progress = Callable[[str, int, int, float], None]


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps on batches of demonstrations, drawn by the shares of the behaviours, and of drills in comparing."""

    name: str
    steps: int
    learning_rate: float
    behaviours: Mapping[str, float]
    rows: int = 64
    drills: int = 32


SHIPPED = 2  # of the seeds 0, 1 and 2 the one whose expert reads best; docs/quickstart.md shows all three
PHASES = (
    Phase("expert", 2500, 7e-4, {"expert": 0.7, "detour": 0.3}),
    Phase("mixed", 100, 4e-4, {"guess": 0.65, "stray": 0.05, "hasty": 0.1, "expert": 0.2}),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of the model and of what it learns from; the shipped weights come from these."""

    seed: int = SHIPPED
    width: int = 192
    layers: int = 3
    heads: int = 6
    key_heads: int = 2
    inner: int = 384
    passages: int = 2000
    worlds: int = 8
    questions: int = 3000
    reading: float = 0.1
    phases: tuple[Phase, ...] = PHASES


def make(plan: Plan, out: Path, progress: Progress) -> Evaluation:
    """Writes the model folder, with the expert's ceiling beside the weights; returns that ceiling."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceilings: list[Evaluation] = []
    with atomic_write(out) as folder:
        policy = cold_start(plan, device, lambda skilled: ceilings.append(ceiling.measure(skilled)), progress)
        policy.save(folder)
        found = json.dumps(ceiling.as_json(ceilings[0]) | {"seed": plan.seed}, indent=2)
        (folder / ceiling.FILE).write_text(found + "\n", encoding="utf-8")
    return ceilings[0]


def cold_start(plan: Plan, device: torch.device, before_last: Callable[[Policy], None], progress: Progress) -> Policy:
    """Trains the policy from nothing; `before_last` is handed it when only the last phase is left."""
    torch.manual_seed(plan.seed)
    school = School.of(plan)
    tokens = Tokens(vocabulary.tokenizer(school.texts()))
    policy = Policy(model(plan, len(tokens.tokenizer), device), tokens)
    for phase in plan.phases:
        if phase is plan.phases[-1]:
            before_last(policy)
        batches = school.batches(phase, tokens)
        report = _reporter(progress, phase)
        sft.fit(policy, batches, steps=phase.steps, learning_rate=phase.learning_rate, done=report)
    return policy


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


@dataclass(frozen=True, slots=True)
class School:
    """The worlds that demonstrations are about, none of them the quickstart's, with their questions."""

    plan: Plan
    worlds: list[World]
    posed: list[list[WorldQuestion]]

    @classmethod
    def of(cls, plan: Plan) -> "School":
        worlds = [World(plan.passages, 1000 * (plan.seed + 1) + number) for number in range(plan.worlds)]
        return cls(plan, worlds, [list(world.questions("train", plan.questions)) for world in worlds])

    def batches(self, phase: Phase, tokens: Tokens) -> Iterator[list[Row]]:
        """Demonstrations by the shares of the phase, and its drills, without end."""
        dice = random.Random(f"{self.plan.seed}/{phase.name}")
        writers = [Demonstrator(world, tokens, Tags(), "brief", self.plan.reading) for world in self.worlds]
        compared = [[each for each in posed if compares(each)] for posed in self.posed]
        names, shares = list(phase.behaviours), list(phase.behaviours.values())
        while True:
            rows: list[Row] = []
            for _ in range(phase.rows):
                number = dice.randrange(len(self.worlds))
                asked = dice.choice(self.posed[number])
                script = BEHAVIOURS[dice.choices(names, shares)[0]](asked, self.worlds[number], dice)
                rows.append(writers[number].row(asked, script))
            for _ in range(phase.drills):
                number = dice.randrange(len(self.worlds))
                rows.append(writers[number].drill(dice.choice(compared[number])))
            yield rows

    def texts(self) -> Iterator[str]:
        """Text that holds every word the tokenizer should know whole."""
        protocol, dice = Tags(), random.Random(0)
        yield "".join(f" {word}" for word in name_words(self.plan.passages))
        yield "".join(f" {year}" for year in range(1800, 2000))
        yield " Yes No yes no That does not help. must be it. I know this. are the same different came before"
        yield protocol.instruction
        for world, posed in zip(self.worlds, self.posed, strict=True):
            yield from (passage.contents for passage in world.passages())
            for each in posed:
                yield f"Question: {each.question.question}\n"
                yield from (acted(move, protocol) for move in expert(each, world, dice))
        tags = ("think", "search", "information", "answer")
        yield " ".join(f"<{slash}{name}>" for name in tags for slash in ("", "/"))
        yield "\n\n<information>Doc 1(Title: No action was taken: nothing found.\n</information>\n\n"


def _reporter(progress: Progress, phase: Phase) -> Callable[[int, float], None]:
    return lambda step, loss: progress(phase.name, step + 1, phase.steps, loss)
