"""Parity: compare the engine's log-probabilities of its own samples with those of the training forward pass.

Each prompt has a group of samples that share its cached pages. Every other sample continues with a second turn
after an observation, on the pages of its first turn. The comparison thus covers cached and shared pages.

Suffix: T scored tokens.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

import torch

from sleuth.agent import prompts as prompt_templates
from sleuth.agent.episode import Agent
from sleuth.agent.ledger import Ledger
from sleuth.config.algorithm import AlgorithmConfig, CorrectionConfig
from sleuth.config.tree import Config
from sleuth.engines.base import Engine, Sampling
from sleuth.errors import EngineFailure, UserError
from sleuth.gateway.outside import OutsideAgent
from sleuth.model.packing import Row, pack, row
from sleuth.model.policy import Policy
from sleuth.records import Question
from sleuth.runs.interruption import INTERRUPTION
from sleuth.train.guards import stop_for_engine
from sleuth.train.observer import RunObserver
from sleuth.train.parts import Parts
from sleuth.train.ranks import ALONE, Ranks
from sleuth.train.rollout import RolloutSchedule

FILE = "parity.json"
PROMPTS = 6
SAMPLES = 4  # per prompt
TOKENS = 16  # sampled per turn
OBSERVATION = 40  # tokens of the observation of the first prompt; each further prompt has as many more
PACK_TOKENS = 4096
EQUAL = 0.005  # mean difference up to which the engine's logprobs can replace the trainer's


@dataclass(frozen=True, slots=True)
class Parity:
    """Mean and maximum logprob difference between engine and trainer; k3 estimates their KL divergence."""

    tokens: int
    mean: float
    maximum: float
    k3: float
    dtype: str
    device: str
    temperature: float

    def line(self) -> str:
        return (
            f"logprobs of engine and trainer differ by {self.mean:.2g} on average and {self.maximum:.2g} at most "
            f"(k3 {self.k3:.2g}, {self.tokens:,} tokens, {self.dtype}, {self.device})"
        )

    def metrics(self) -> dict[str, float]:
        return {"parity/mean": self.mean, "parity/max": self.maximum, "parity/k3": self.k3}

    def as_json(self) -> dict[str, Any]:
        """Return all fields as a dict; non-finite values become None."""
        return {
            name: None if isinstance(value, float) and not isfinite(value) else value
            for name, value in asdict(self).items()
        }

    def within(self, limit: float) -> bool:
        """Whether the mean difference is at most `limit`; False for NaN."""
        return self.mean <= limit


def check_engine(parts: Parts, rollouts: RolloutSchedule, observer: RunObserver, step: int) -> Parity:
    """Measure and record parity on the run's questions; raises UserError if the difference exceeds the limit."""
    observer.begin("checking the engine against the trainer", 1)
    parts.publisher.publish(step)
    agent, config = parts.agent, parts.config
    questions = parts.sampler.stream.questions[:PROMPTS]
    work = measure(
        parts.engine,
        parts.learner.policy,
        [_prompt(agent, question) for question in questions],
        context=agent.config.context_tokens,
        concurrent=config.engine.slots,
        temperature=config.train.temperature,
        seed=config.train.seed,
        ranks=parts.ranks,
    )
    try:
        found = rollouts.run(INTERRUPTION.cancel_on_signal(work))
    except EngineFailure as failure:
        stop_for_engine(failure)
    parts.publisher.publish(step)
    if parts.is_first_rank:
        parts.run.write_json(FILE, {"step": step, **found.as_json()})
    observer.log(found.line())
    require(found, parts.config.engine.parity_limit, parts.config.model.policy)
    return found


def _prompt(agent: Agent | OutsideAgent, question: Question) -> Sequence[int]:
    """Return a question's prompt, or the question alone for an outside agent, whose prompts are not known yet."""
    if isinstance(agent, Agent):
        return prompt_templates.render(question, agent.config.template, agent.protocol, agent.tokens)
    return prompt_templates.encode([{"role": "user", "content": question.question}], agent.tokens)


def require(found: Parity, limit: float, model: str) -> None:
    """Raise UserError if the mean logprob difference between engine and trainer exceeds the limit."""
    if not found.within(limit):
        raise UserError(
            f"{found.line()}, more than engine.parity = {limit:g} on average: run `sleuth doctor {model}`, or start a "
            "new run with a higher engine.parity"
        )


def with_correction(parts: Parts, found: Parity, observer: RunObserver) -> Parts:
    """Return the parts with an importance-sampling correction if the settings and the measured parity require it."""
    algorithm = corrected(parts.config, found)
    if algorithm is parts.config.algorithm:
        return parts
    settings = algorithm.correction
    observer.log(
        f"correction: each token is weighted by the ratio of trainer to engine, at most {settings.high:g}, because "
        f"their logprobs differ by more than {EQUAL:g} (algorithm.correction.level = {settings.level})"
    )
    config = parts.config.model_copy(update={"algorithm": algorithm})
    return replace(parts, config=config, learner=replace(parts.learner, algorithm=algorithm))


def corrected(config: Config, found: Parity) -> AlgorithmConfig:
    """Add truncated importance sampling (TIS) if the engine server's logprobs differ and no correction is set."""
    algorithm = config.algorithm
    decided = algorithm.correction.level != "auto" or algorithm.old == "engine" or not algorithm.origin_mask
    if decided or not config.engine.is_server or found.within(EQUAL):
        return algorithm
    return algorithm.model_copy(update={"correction": CorrectionConfig(level="token")})


def recomputes_old_logprobs(parts: Parts, found: Parity, observer: RunObserver) -> bool:
    """Whether the trainer recomputes the old logprobs instead of using the engine's."""
    algorithm = parts.config.algorithm
    recompute = algorithm.recomputes or (algorithm.old == "auto" and not found.within(EQUAL))
    observer.log(f"old logprobs: {'recomputed by the trainer' if recompute else 'from the engine'}")
    return recompute


async def measure(
    engine: Engine,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    *,
    context: int,
    concurrent: int = PROMPTS * SAMPLES,
    tokens: int = TOKENS,
    temperature: float = 1.0,
    seed: int = 0,
    ranks: Ranks = ALONE,
) -> Parity:
    """Sample from the engine and score the same tokens with the policy; `context` bounds each row.

    The samples stay in the engine's cache; publish the weights again to clear it.
    """
    sampling = Sampling(tokens, temperature, seed=seed)
    rows = await _sample_rows(engine, list(_dialogues(prompts)), context, concurrent, sampling)
    # Ranks score together, so all of them score the samples of every rank's engine.
    every = ranks.gather(rows, "the samples of the engines")
    found = compare(policy, [each for theirs in every for each in theirs], temperature)
    return ranks.gather([found], "the parity of the engines")[0][0]


def compare(policy: Policy, rows: Sequence[Row], temperature: float) -> Parity:
    """Compare the column "old" of the rows with the logprobs of the policy."""
    differences = []
    with torch.no_grad():
        for packed in pack(rows, PACK_TOKENS, policy.device):
            # Greedy samples carry their logprob at temperature 1.
            logprob_T, _ = policy.score(packed, temperature or 1.0)
            differences.append(logprob_T.double() - packed.columns["old"].double())
    difference_T = torch.cat(differences)
    return Parity(
        tokens=len(difference_T),
        mean=float(difference_T.abs().mean()),
        maximum=float(difference_T.abs().max()),
        k3=float((difference_T.expm1() - difference_T).mean()),
        dtype=str(next(policy.model.parameters()).dtype).removeprefix("torch."),
        device=policy.device.type,
        temperature=temperature,
    )


Dialogue = tuple[Sequence[int], ...]  # the tokens given before each turn


def _dialogues(prompts: Sequence[Sequence[int]]) -> Iterator[Dialogue]:
    """Yield the dialogues of each prompt; observations reuse the tokens of the prompts."""
    text = [token for prompt in prompts for token in prompt]
    for place, prompt in enumerate(prompts):
        length = OBSERVATION * (place + 1)
        repeated = text * (length // len(text) + 1)
        for sample in range(SAMPLES):
            yield (prompt, repeated[:length]) if sample % 2 else (prompt,)


async def _sample_rows(
    engine: Engine, dialogues: Sequence[Dialogue], context: int, concurrent: int, sampling: Sampling
) -> list[Row]:
    """Run the dialogues in order, at most `concurrent` at a time."""
    waiting = iter(enumerate(dialogues))
    rows: dict[int, Row] = {}

    async def worker() -> None:
        for number, dialogue in waiting:
            rows[number] = await _sample_row(engine, dialogue, number, context, sampling)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrent, len(dialogues))):
                group.create_task(worker())
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from several  # the first error cancelled the others
    return [rows[number] for number in range(len(dialogues))]


async def _sample_row(engine: Engine, dialogue: Dialogue, number: int, context: int, sampling: Sampling) -> Row:
    """Run one dialogue, truncating each prompt and observation to leave room for sampled tokens."""
    ledger = Ledger()
    with engine.session(number) as session:
        for turn, given in enumerate(dialogue):
            room = context - len(ledger) - sampling.max_tokens
            if turn and room < 1:
                break
            ledger.given(given[: max(1, room)])
            tokens = max(1, min(sampling.max_tokens, context - len(ledger)))
            limited = replace(sampling, max_tokens=tokens, seed=sampling.seed + 2 * number + turn)
            ledger.sampled(await engine.generate(ledger.ids, limited, session))
    return row(ledger.ids, tuple(map(float, ledger.origin)), old=ledger.logprobs)
