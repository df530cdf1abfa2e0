"""The parts of a run put together for a step that is measured: policy, optimiser, reference, engine, agent and index.

Episodes are those of a run but for one thing: a model of random weights writes no query and never stops, so every turn
has exactly as many tokens as asked for, and searches for a question of the encyclopedia.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from random import Random

import torch
from transformers import PretrainedConfig

from sleuth.agent import prompts
from sleuth.agent.episode import Agent, Task, run_batch
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.bench import policies
from sleuth.bench.device import SynchronizedTimer
from sleuth.bench.encyclopedia import Encyclopedia
from sleuth.bench.forced import Forced, fitted
from sleuth.bench.plan import Plan
from sleuth.config.agent import AgentConfig
from sleuth.config.algorithm import AlgorithmConfig, KLConfig
from sleuth.config.train import TrainConfig
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import EngineFailure, InputError
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.records import Group, Question, Score, Trajectory
from sleuth.train.optimiser import Optimiser
from sleuth.train.publish import SharedWeights
from sleuth.train.step import Learner, StepRates

PROMPT = "instruct"
HITS = 10  # passages of which an observation is cut: generated ones are short
RATE, KL = 1e-6, 0.001  # as Search-R1 has them


@dataclass(frozen=True, slots=True)
class Rig:
    """Does a step, as the loop of a run does; the clock of its learner knows how long the parts took."""

    plan: Plan
    learner: Learner
    agent: Agent
    engine: PagedEngine
    loop: asyncio.Runner

    def step(self, questions: Sequence[Question], number: int) -> list[Trajectory]:
        """Episodes of the questions, an update of the weights by each mini-batch of them, and the engine told."""
        with self.learner.timer.time("generate"):
            found = self.loop.run(run_batch(self.agent, _tasks(questions, self.plan, number), self.plan.slots))
        require_whole(found, self.plan)
        self._learn(_rewarded(found, self.plan.samples, number))
        with self.learner.timer.time("publish"):
            SharedWeights(self.engine).publish(number + 1)
        return found

    def _learn(self, groups: Sequence[Group]) -> None:
        updates = self.plan.updates(len(groups) * self.plan.samples)
        learner = replace(self.learner, train=self.learner.train.model_copy(update={"updates": updates}))
        learned = learner.learn(groups, StepRates(RATE, KL if self.plan.kl else 0.0), isfinite, recompute=False)
        if not isfinite(norm := learned["policy/gradient_norm"]):
            raise EngineFailure(f"the gradient has the norm {norm}, expected a number: nothing was learned")


@contextmanager
def assembled(
    shape: PretrainedConfig, tokens: Tokens, plan: Plan, encyclopedia: Encyclopedia, device: torch.device
) -> Iterator[Rig]:
    """A rig on the device; its engine is closed afterwards."""
    protocol, context = forced(shape, tokens, plan, encyclopedia)
    learner = _learner(shape, tokens, plan, context, device)
    engine, agent = seated(learner.policy, plan, encyclopedia, protocol, context)
    with asyncio.Runner() as loop:
        try:
            yield Rig(plan, learner, agent, engine, loop)
        finally:
            loop.run(engine.close())


def forced(shape: PretrainedConfig, tokens: Tokens, plan: Plan, encyclopedia: Encyclopedia) -> tuple[Forced, int]:
    """The grammar in which a model of random weights searches, and the tokens that its longest episode takes."""
    protocol = _protocol(plan, tokens, encyclopedia.questions)
    longest = max(len(prompts.render(each, PROMPT, protocol, tokens)) for each in encyclopedia.questions)
    return protocol, _context(plan, longest, shape)


def seated(
    policy: Policy, plan: Plan, encyclopedia: Encyclopedia, protocol: Forced, context: int
) -> tuple[PagedEngine, Agent]:
    """The policy in the embedded engine, and the agent that speaks with it."""
    engine = _engine(policy, plan, context)
    tool = Toolbox(encyclopedia.retriever, HITS)
    return engine, Agent(engine, policy.tokens, protocol, tool, _limits(plan, context))


def _protocol(plan: Plan, tokens: Tokens, questions: Sequence[Question]) -> Forced:
    """With an instruction that makes a prompt about as long as asked for."""
    queries = [each.question for each in questions]
    room = plan.prompt_tokens - len(tokens.encode(f"\nQuestion: {queries[0]}\n"))
    return Forced(queries, fitted(Tags.instruction, max(1, room), tokens))


def _context(plan: Plan, prompt: int, shape: PretrainedConfig) -> int:
    context, known = plan.context(prompt), int(shape.max_position_embeddings)
    if context > known:
        raise InputError(
            f"episodes of {context} tokens are more than the {known} positions of the model; lower --turn-tokens, "
            "--observation-tokens or --searches"
        )
    return context


def _learner(shape: PretrainedConfig, tokens: Tokens, plan: Plan, context: int, device: torch.device) -> Learner:
    policy = policies.policy(shape, tokens, device, rank=plan.lora, recompute=plan.recompute)
    train = TrainConfig(
        questions=plan.questions, samples=plan.samples, pack_tokens=plan.pack_tokens, learning_rate=RATE
    )
    return Learner(
        policy,
        Optimiser(policy.model.named_parameters(), learning_rate=RATE, weight_decay=train.weight_decay),
        AlgorithmConfig(kl=KLConfig(place="loss", coefficient=KL) if plan.kl else KLConfig()),
        train,
        context,
        policies.reference(shape, policy) if plan.kl else None,
        timer=SynchronizedTimer(device),
    )


def _engine(policy: Policy, plan: Plan, context: int) -> PagedEngine:
    return PagedEngine(
        policy.model,
        None,  # without a tokenizer it knows no end of a text
        slots=plan.slots,
        context=context + 1,
        memory=plan.engine_memory,
        lockstep=policy.device.type == "cpu",
    )


def _limits(plan: Plan, context: int) -> AgentConfig:
    return AgentConfig(
        prompt=PROMPT,
        searches=plan.searches,
        turn_tokens=plan.turn_tokens,
        observation_tokens=plan.observation_tokens,
        context_tokens=context,
    )


def _tasks(questions: Sequence[Question], plan: Plan, step: int) -> list[Task]:
    return [
        Task(question, group, sample, step)
        for group, question in enumerate(questions)
        for sample in range(plan.samples)
    ]


def require_whole(trajectories: Sequence[Trajectory], plan: Plan) -> None:
    """Refuses episodes that are not as long as was asked for: what was measured would be something else."""
    for each in trajectories:
        if each.failure is not None or len(each.logprobs) != plan.sampled:
            why = each.failure or f"it ended as {each.stop}"
            raise EngineFailure(f"an episode has {len(each.logprobs)} sampled tokens, expected {plan.sampled}: {why}")


def _rewarded(trajectories: Sequence[Trajectory], samples: int, step: int) -> list[Group]:
    """Groups with rewards that differ within each, so that all of them move the weights."""
    dice = Random(step)
    groups = [trajectories[first : first + samples] for first in range(0, len(trajectories), samples)]
    return [Group(own[0].question, tuple(own), tuple(Score(dice.random(), {}) for _ in own)) for own in groups]
