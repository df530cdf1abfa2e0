"""Whole episodes with random weights: the plan, a generated corpus, and the parts of a run assembled for one step.

Episodes match those of a run, except that a random model writes no query and never stops: every turn has exactly the
planned number of tokens and searches for a question of the corpus.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from math import ceil, isfinite
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from transformers import PretrainedConfig

from sleuth.agent import prompts
from sleuth.agent.episode import Agent, run_batch
from sleuth.agent.tags import Tags
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.bench.measurement import SynchronizedTimer
from sleuth.bench.models import frozen_reference, random_policy
from sleuth.config.agent import AgentConfig
from sleuth.config.algorithm import AlgorithmConfig, KLConfig
from sleuth.config.retrieval import IndexPlan, RetrievalConfig
from sleuth.config.train import TrainConfig
from sleuth.corpus import questions as question_files
from sleuth.corpus.questions import CORPUS, TRAIN
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import EngineFailure, InputError
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.records import Action, Group, Question, Score, ToolCall, Trajectory
from sleuth.retrieval import index
from sleuth.retrieval.backends import open_retriever
from sleuth.retrieval.retriever import Retriever
from sleuth.synthesis.world.world import World, write_world
from sleuth.train.optimiser import Kind, Optimiser
from sleuth.train.publish import SharedWeights
from sleuth.train.step import Learner, StepRates

PROMPT = "instruct"
HITS = 10  # passages per observation before truncation: generated ones are short
LEARNING_RATE, KL = 1e-6, 0.001  # as in Search-R1


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts and token lengths of a step; `update` is the maximum number of trajectories per weight update.

    The step is measured `steps` times after a warm-up of `warmup` questions; no question is repeated.
    """

    questions: int = 512
    samples: int = 5
    searches: int = 2
    prompt_tokens: int = 180
    turn_tokens: int = 80
    observation_tokens: int = 240
    update: int = 256
    kl: bool = True
    lora: int = 0
    recompute: float = 0.0
    optimiser: Kind = "adamw"
    offload: bool = False
    pack_tokens: int | None = None
    slots: int = 1024
    engine_memory: float = 0.2
    warmup: int = 16
    steps: int = 1
    passages: int = 20_000

    def __post_init__(self) -> None:
        if self.update < self.samples:
            raise InputError(
                f"updates of {self.update} trajectories are smaller than a group of {self.samples}; raise --update"
            )

    @property
    def total_questions(self) -> int:
        return self.warmup + self.steps * self.questions

    @property
    def sampled(self) -> int:
        return self.turn_tokens * (self.searches + 1)

    def updates(self, trajectories: int) -> int:
        return ceil(trajectories / self.update)


@dataclass(frozen=True, slots=True)
class Encyclopedia:
    questions: list[Question]
    retriever: Retriever


@contextmanager
def generated_encyclopedia(plan: Plan) -> Iterator[Encyclopedia]:
    """Generate a world on disk with a BM25 index, opened as in a run."""
    with TemporaryDirectory() as scratch:
        world, built = Path(scratch, "world"), Path(scratch, "index")
        write_world(World(plan.passages, 0), world, plan.total_questions, 1)
        index.build(world / CORPUS, built, IndexPlan.of("bm25"))
        retriever = open_retriever(RetrievalConfig(), built, Path(scratch, "searches.jsonl"))
        yield Encyclopedia(question_files.load(world / TRAIN), retriever)


class ForcedSearch(Tags):
    """A protocol in which every turn has full length and searches for the next query, ignoring the model's text."""

    stops: tuple[str, ...] = ()

    def __init__(self, queries: Sequence[str], instruction: str) -> None:
        self._queries = cycle(queries)
        self.instruction = instruction

    def parse(self, text: str) -> Action:  # noqa: ARG002
        return ToolCall.search(next(self._queries))


def resize(text: str, length: int, tokens: Tokens) -> str:
    """Cut or repeat a text to about `length` tokens."""
    ids = tokens.encode(text)
    if not ids:
        raise ValueError("a text without tokens cannot be resized")
    return tokens.decode((ids * -(-length // len(ids)))[:length])


def forced_protocol(
    shape: PretrainedConfig, tokens: Tokens, plan: Plan, encyclopedia: Encyclopedia
) -> tuple[ForcedSearch, int]:
    """Return a protocol with prompts of about the planned length, and the token count of the longest episode."""
    queries = [each.question for each in encyclopedia.questions]
    room = plan.prompt_tokens - len(tokens.encode(f"\nQuestion: {queries[0]}\n"))
    protocol = ForcedSearch(queries, resize(Tags.instruction, max(1, room), tokens))
    prompt = max(len(prompts.render(each, PROMPT, protocol, tokens)) for each in encyclopedia.questions)
    context, positions = prompt + plan.sampled + plan.searches * plan.observation_tokens, shape.max_position_embeddings
    if context > positions:
        raise InputError(
            f"episodes of {context} tokens exceed the {positions} positions of the model; lower --turn-tokens, "
            "--observation-tokens or --searches"
        )
    return protocol, context


def build_agent(
    policy: Policy, plan: Plan, encyclopedia: Encyclopedia, protocol: ForcedSearch, context: int
) -> tuple[PagedEngine, Agent]:
    engine = PagedEngine(
        policy.model,
        None,  # without a tokenizer there is no end-of-text token
        slots=plan.slots,
        context=context + 1,
        memory=plan.engine_memory,
        lockstep=policy.device.type == "cpu",
    )
    limits = AgentConfig(
        prompt=PROMPT,
        searches=plan.searches,
        turn_tokens=plan.turn_tokens,
        observation_tokens=plan.observation_tokens,
        context_tokens=context,
    )
    return engine, Agent(engine, policy.tokens, protocol, Toolbox(encyclopedia.retriever, HITS), limits)


def require_full_length(trajectories: Sequence[Trajectory], plan: Plan) -> None:
    """Raise EngineFailure if an episode does not have the planned length."""
    for each in trajectories:
        if each.failure is not None or len(each.logprobs) != plan.sampled:
            reason = each.failure or f"it stopped with {each.stop}"
            raise EngineFailure(
                f"an episode has {len(each.logprobs)} sampled tokens, expected {plan.sampled}: {reason}"
            )


@dataclass(frozen=True, slots=True)
class Rig:
    """The assembled parts of a run; `learner.timer` holds the time of each part of a step."""

    plan: Plan
    learner: Learner
    agent: Agent
    engine: PagedEngine
    loop: asyncio.Runner

    def step(self, questions: Sequence[Question], number: int) -> list[Trajectory]:
        """Run the episodes of the questions, update the weights with each mini-batch, and publish the weights."""
        plan, samples = self.plan, self.plan.samples
        tasks = [Task(each, group, n, number) for group, each in enumerate(questions) for n in range(samples)]
        with self.learner.timer.time("generate"):
            trajectories = self.loop.run(run_batch(self.agent, tasks, plan.slots))
        require_full_length(trajectories, plan)
        # Random rewards differ within each group, so all groups contribute to the update.
        random = Random(number)
        groups = [
            Group(own[0].question, tuple(own), tuple(Score(random.random(), {}) for _ in own))
            for own in (trajectories[first : first + samples] for first in range(0, len(trajectories), samples))
        ]
        train = self.learner.train.model_copy(update={"updates": plan.updates(len(trajectories))})
        rates = StepRates(LEARNING_RATE, KL if plan.kl else 0.0)
        metrics = replace(self.learner, train=train).learn(groups, rates, isfinite, recompute=False)
        if not isfinite(norm := metrics["policy/gradient_norm"]):
            raise EngineFailure(f"the gradient norm is {norm}, expected a finite number")
        with self.learner.timer.time("publish"):
            SharedWeights(self.engine).publish(number + 1)
        return trajectories


@contextmanager
def assembled_rig(
    shape: PretrainedConfig,
    tokens: Tokens,
    plan: Plan,
    encyclopedia: Encyclopedia,
    device: torch.device,
    timer: SynchronizedTimer | None = None,
) -> Iterator[Rig]:
    """Assemble the parts of a run on a device; the engine is closed afterwards."""
    protocol, context = forced_protocol(shape, tokens, plan, encyclopedia)
    policy = random_policy(shape, tokens, device, rank=plan.lora, recompute=plan.recompute)
    train = TrainConfig(
        questions=plan.questions,
        samples=plan.samples,
        pack_tokens=plan.pack_tokens,
        learning_rate=LEARNING_RATE,
        optimiser=plan.optimiser,
        offload=plan.offload,
    )
    learner = Learner(
        policy,
        Optimiser.build(policy.model.named_parameters(), train, LEARNING_RATE),
        AlgorithmConfig(kl=KLConfig(place="loss", coefficient=KL) if plan.kl else KLConfig()),
        train,
        context,
        frozen_reference(shape, policy) if plan.kl else None,
        timer=timer or SynchronizedTimer(device),
    )
    engine, agent = build_agent(policy, plan, encyclopedia, protocol, context)
    with asyncio.Runner() as loop:
        try:
            yield Rig(plan, learner, agent, engine, loop)
        finally:
            loop.run(engine.close())
