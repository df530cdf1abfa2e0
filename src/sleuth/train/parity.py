"""Parity: the engine's logprobs of its own samples beside those of the training forward.

Every prompt is asked by a group, whose samples share its cached pages; every other sample goes on to a second turn
after an observation, over the pages of its first. What the engine keeps and shares is thereby part of what is compared.

Suffix: T scored tokens.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from sleuth.agent.ledger import Ledger
from sleuth.config.algorithm import AlgorithmConfig, CorrectionConfig
from sleuth.config.tree import Config
from sleuth.engines.base import Engine, Sampling
from sleuth.errors import UserError
from sleuth.model.packing import Pack, Row, pack, row
from sleuth.model.policy import Policy
from sleuth.train.ranks import ALONE, Ranks

FILE = "parity.json"
PROMPTS = 6
SAMPLES = 4  # of each prompt
TOKENS = 16  # sampled in a turn
OBSERVATION = 40  # tokens given before a second turn, and as many more from one to the next
PACK = 4096
SAME = 0.005  # apart in the mean, the engine's logprobs stand for the trainer's own


@dataclass(frozen=True, slots=True)
class Parity:
    """How far apart the logprobs of engine and trainer are, in mean and at most; k3 estimates the KL between them."""

    tokens: int
    mean: float
    maximum: float
    k3: float
    dtype: str
    device: str
    temperature: float

    def line(self) -> str:
        """The whole of it in one line."""
        return (
            f"logprobs of engine and trainer differ by {self.mean:.2g} in the mean and {self.maximum:.2g} at most "
            f"(k3 {self.k3:.2g}, {self.tokens:,} tokens, {self.dtype}, {self.device})"
        )

    def metrics(self) -> dict[str, float]:
        """The figures by the names they are recorded under."""
        return {"parity/mean": self.mean, "parity/max": self.maximum, "parity/k3": self.k3}

    def as_json(self) -> dict[str, Any]:
        """What is saved; a figure that is no number has none in JSON."""
        return {
            name: None if isinstance(value, float) and not isfinite(value) else value
            for name, value in asdict(self).items()
        }

    def within(self, limit: float) -> bool:
        """Whether the mean is at most `limit`; a mean that is no number is not."""
        return self.mean <= limit


@dataclass(frozen=True, slots=True)
class Talk:
    """One sample of a prompt: what is given before each of its turns, and what its seeds are counted from."""

    given: tuple[Sequence[int], ...]
    seed: int


def require(found: Parity, limit: float, model: str) -> None:
    """Refuses to train on logprobs that are not the trainer's own."""
    if not found.within(limit):
        raise UserError(
            f"{found.line()}, expected at most engine.parity = {limit:g} in the mean: see what `sleuth doctor {model}` "
            "says, or begin a new run with a higher engine.parity"
        )


def corrected(config: Config, found: Parity) -> AlgorithmConfig:
    """The algorithm of a run, with a correction where a server is apart from the trainer and none was chosen.

    It is TIS, truncated importance sampling: the ratio of each token, held below 2.
    """
    algorithm = config.algorithm
    decided = algorithm.correction.level != "auto" or algorithm.old == "engine" or not algorithm.origin_mask
    if decided or config.engine.kind == "paged" or found.within(SAME):
        return algorithm
    return algorithm.model_copy(update={"correction": CorrectionConfig(level="token")})


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
    """Lets the engine sample after the prompts and scores the same tokens by the policy; `context` bounds each row.

    The engine keeps what it has seen: publish to it afterwards.
    """
    rows = await _sampled(engine, list(_talks(prompts, seed)), context, concurrent, Sampling(tokens, temperature))
    # The samples of every rank's engine: the ranks score together, so they must score the same, and find the same.
    every = ranks.gather(rows, "the samples of the engines")
    found = compare(policy, [each for theirs in every for each in theirs], temperature)
    return ranks.gather([found], "the parity of the engines")[0][0]


def compare(policy: Policy, rows: Sequence[Row], temperature: float) -> Parity:
    """The logprobs that rows bring with them beside those of the policy."""
    apart_T = torch.cat([_apart(policy, each, temperature) for each in pack(rows, PACK, policy.device)])
    return Parity(
        tokens=len(apart_T),
        mean=float(apart_T.abs().mean()),
        maximum=float(apart_T.abs().max()),
        k3=float((apart_T.expm1() - apart_T).mean()),
        dtype=str(next(policy.model.parameters()).dtype).removeprefix("torch."),
        device=policy.device.type,
        temperature=temperature,
    )


@torch.no_grad()
def _apart(policy: Policy, packed: Pack, temperature: float) -> Tensor:
    """Trainer minus engine; greedy samples carry their logprob at temperature 1."""
    logprob_T, _ = policy.score(packed, temperature or 1.0)
    return logprob_T.double() - packed.columns["old"].double()


def _talks(prompts: Sequence[Sequence[int]], seed: int) -> Iterator[Talk]:
    """The samples of each prompt one after the other; observations are text of the prompts themselves."""
    text = [token for prompt in prompts for token in prompt]
    for place, prompt in enumerate(prompts):
        for sample in range(SAMPLES):
            length = OBSERVATION * (place + 1)
            repeated = text * (length // len(text) + 1)
            number = place * SAMPLES + sample
            yield Talk((prompt, repeated[:length]) if sample % 2 else (prompt,), seed + 2 * number)


async def _sampled(
    engine: Engine, talks: Sequence[Talk], context: int, concurrent: int, sampling: Sampling
) -> list[Row]:
    """The talks as rows, at most `concurrent` at a time, admitted in their order."""
    waiting = iter(enumerate(talks))
    rows: dict[int, Row] = {}

    async def worker() -> None:
        for number, talk in waiting:
            rows[number] = await _held(engine, talk, number, context, sampling)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrent, len(talks))):
                group.create_task(worker())
    except BaseExceptionGroup as several:
        # The first ended the others; alone, it is what callers know how to catch.
        raise several.exceptions[0] from several
    return [rows[number] for number in range(len(talks))]


async def _held(engine: Engine, talk: Talk, number: int, context: int, sampling: Sampling) -> Row:
    """One talk, each part of it cut to leave room for tokens sampled after it."""
    ledger = Ledger()
    with engine.session(number) as session:
        for turn, given in enumerate(talk.given):
            room = context - len(ledger) - sampling.max_tokens
            if turn and room < 1:
                break
            ledger.given(given[: max(1, room)])
            drawn = Sampling(
                max_tokens=max(1, min(sampling.max_tokens, context - len(ledger))),
                temperature=sampling.temperature,
                seed=talk.seed + turn,
            )
            ledger.sampled(await engine.generate(ledger.ids, drawn, session))
    return row(ledger.ids, tuple(map(float, ledger.origin)), old=ledger.logprobs)
