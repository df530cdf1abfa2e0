"""Cold start of the quickstarts: a small model and tokenizer trained from scratch on demonstrations.

The first phase trains an expert: copying names, two-hop chains, and drills in comparing two facts. Some chains have no
question: what is needed next must then follow from the thought before it. The second phase adds lower-quality
behaviours, mostly guesses, so that reinforcement learning has room to improve. No demonstration takes three hops.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from sleuth.agent.tags import Tags
from sleuth.evaluate.results import Evaluation
from sleuth.model import attention
from sleuth.model.packing import Row
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs.atomic import atomic_write
from sleuth.sft.demonstrations import BEHAVIOURS, Demonstrator, expert, is_comparison, render_move
from sleuth.sft.dialects import DIALECTS, Dialect
from sleuth.sft.loop import fit
from sleuth.synthesis.world.names import name_words
from sleuth.synthesis.world.world import World, WorldQuestion
from sleuth.train import held_out

Progress = Callable[[str, int, int, float], None]


@dataclass(frozen=True, slots=True)
class Phase:
    """A training phase on demonstrations, sampled by behaviour weights, and comparison drills."""

    name: str
    steps: int
    learning_rate: float
    behaviours: Mapping[str, float]
    rows: int = 64
    drills: int = 32
    promptless: float = 0.0  # share of the chains of two and three hops whose question is left out


SHIPPED_SEEDS = {"tags": 2, "tools": 1}  # those with the best expert; docs/quickstart.md shows the others
PHASES = (
    Phase("expert", 2500, 7e-4, {"expert": 0.7, "detour": 0.3}, promptless=0.3),
    Phase("mixed", 100, 4e-4, {"guess": 0.65, "stray": 0.05, "hasty": 0.1, "expert": 0.2}),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Size of the model and of its training data; docs/quickstart.md names the commits of the shipped weights."""

    seed: int = SHIPPED_SEEDS["tags"]
    dialect: Dialect = DIALECTS["tags"]
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


def make_policy(plan: Plan, out: Path, progress: Progress) -> Evaluation:
    """Train and write the model folder, with the expert's evaluation as the ceiling; return that evaluation."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceilings: list[Evaluation] = []

    def keep_ceiling(skilled: Policy) -> None:
        ceilings.append(held_out.measure_ceiling(skilled, plan.dialect.recipe))

    with atomic_write(out) as folder:
        policy = cold_start(plan, device, keep_ceiling, progress)
        policy.save(folder)
        found = json.dumps(held_out.ceiling_json(ceilings[0], plan.dialect.recipe) | {"seed": plan.seed}, indent=2)
        (folder / held_out.CEILING).write_text(found + "\n", encoding="utf-8")
    return ceilings[0]


def cold_start(
    plan: Plan, device: torch.device, before_last_phase: Callable[[Policy], None], progress: Progress
) -> Policy:
    """Train the policy from scratch; `before_last_phase` is called with the policy before the last phase."""
    torch.manual_seed(plan.seed)
    data = DemonstrationSet.generate(plan)
    tokens = Tokens(build_tokenizer(data.texts(), plan.dialect))
    policy = Policy(build_model(plan, len(tokens.tokenizer), device), tokens)
    for phase in plan.phases:
        if phase is plan.phases[-1]:
            before_last_phase(policy)

        def on_step(step: int, loss: float, phase: Phase = phase) -> None:
            progress(phase.name, step + 1, phase.steps, loss)

        fit(policy, data.batches(phase, tokens), steps=phase.steps, learning_rate=phase.learning_rate, on_step=on_step)
    return policy


def build_model(plan: Plan, vocabulary_size: int, device: torch.device) -> PreTrainedModel:
    """Build a Llama model small enough to train on two CPU cores."""
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


def build_tokenizer(texts: Iterable[str], dialect: Dialect = DIALECTS["tags"]) -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per piece of the texts and a byte fallback for other text."""
    words = pre_tokenizers.Split(Regex(dialect.piece), behavior="isolated")
    splitter = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    counts = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pad, end, *special = dialect.special
    pieces = [*dialect.special, *letters, *sorted(counts.keys() - set(letters))]
    # With an empty prefix, any piece can continue a word, so unknown words split into known pieces and bytes.
    model = models.WordPiece(
        vocab={piece: number for number, piece in enumerate(pieces)},
        unk_token=pad,
        continuing_subword_prefix="",
        max_input_chars_per_word=10_000,
    )
    backend = Tokenizer(model)
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    others = {"additional_special_tokens": special} if special else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=end, pad_token=pad, chat_template=dialect.chat_template, **others
    )


@dataclass(frozen=True, slots=True)
class DemonstrationSet:
    """Generated worlds other than the quickstart's, with their questions."""

    plan: Plan
    worlds: list[World]
    questions: list[list[WorldQuestion]]

    @classmethod
    def generate(cls, plan: Plan) -> "DemonstrationSet":
        worlds = [World(plan.passages, 1000 * (plan.seed + 1) + number) for number in range(plan.worlds)]
        return cls(plan, worlds, [list(world.questions("train", plan.questions)) for world in worlds])

    def batches(self, phase: Phase, tokens: Tokens) -> Iterator[list[Row]]:
        """Yield endless batches of a phase's demonstrations and drills."""
        rng = random.Random(f"{self.plan.seed}/{phase.name}")
        writers = [Demonstrator(world, tokens, self.plan.reading) for world in self.worlds]
        speech = self.plan.dialect.speech(tokens)
        comparisons = [[each for each in questions if is_comparison(each)] for questions in self.questions]
        names, weights = list(phase.behaviours), list(phase.behaviours.values())
        while True:
            rows: list[Row] = []
            for _ in range(phase.rows):
                number = rng.randrange(len(self.worlds))
                question = rng.choice(self.questions[number])
                script = BEHAVIOURS[rng.choices(names, weights)[0]](question, self.worlds[number], rng)
                prompted = rng.random() >= phase.promptless or is_comparison(question) or len(question.hops) < 2
                rows.append(writers[number].row(question, script, speech(rng), prompted))
            for _ in range(phase.drills):
                number = rng.randrange(len(self.worlds))
                rows.append(writers[number].drill(rng.choice(comparisons[number])))
            yield rows

    def texts(self) -> Iterator[str]:
        """Yield texts that contain every word that should be a single token."""
        rng, names = random.Random(0), name_words(self.plan.passages)
        yield "".join(f" {word}" for word in names)
        yield "".join(f" {year}" for year in range(1800, 2000))
        yield " Yes No yes no That does not help. must be it. I know this. are the same different came before"
        yield from self.plan.dialect.texts()
        if self.plan.dialect.chat_template:
            yield '"'.join(names)  # in JSON, a name follows a quotation mark
        for world, questions in zip(self.worlds, self.questions, strict=True):
            yield from (passage.contents for passage in world.passages())
            for each in questions:
                yield f"Question: {each.question.question}\n"
                yield from (render_move(move, Tags().write) for move in expert(each, world, rng))
