"""Evaluation speed with random weights: questions asked, searched for, scored and saved as in `sleuth evaluate`."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import torch
from transformers import PretrainedConfig

from sleuth.agent.episode import Agent
from sleuth.bench.episodes import Plan, build_agent, forced_protocol, generated_encyclopedia, require_full_length
from sleuth.bench.measurement import Log, Table, default_device, peak_gib, reset_peak_memory
from sleuth.bench.models import random_policy
from sleuth.errors import InputError
from sleuth.evaluate.folder import EvaluationFolder
from sleuth.evaluate.report import load_results, write_report
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.evaluate.runner import evaluate_folder
from sleuth.model.memory import describe_out_of_memory
from sleuth.model.tokens import Tokens
from sleuth.records import Question

SEARCH_R1 = 51_713  # questions of its seven data sets
ANCHOR = ("verl, 51,713 questions on 8 H20, as published, s", 6_000)


@dataclass(frozen=True, slots=True)
class Measured:
    questions: int
    asking: float
    scoring: float
    searches: int
    tokens: int
    sampled: int
    peak_gib: float | None

    @property
    def rate(self) -> float:
        return self.questions / self.asking

    def table(self, name: str, plan: Plan) -> Table:
        rows: list[tuple[str, object]] = [
            ("questions/s", self.rate),
            ("sampled tokens/s", self.sampled / self.asking),
            ("asking, s", self.asking),
            ("scoring and writing the results, s", self.scoring),
            ("peak GPU memory, GiB", "-" if self.peak_gib is None else self.peak_gib),
            (f"{SEARCH_R1:,} questions at this rate, s", SEARCH_R1 / self.rate),
            ANCHOR,
        ]
        title = (
            f"{name}: {self.questions:,} questions, greedy, {plan.slots:,} in flight, {plan.searches} searches, "
            f"{self.tokens / self.questions:.0f} tokens ({plan.sampled} sampled) per question"
        )
        return Table(title, ("figure", "value"), rows)


def measure(shape: PretrainedConfig, tokens: Tokens, plan: Plan, log: Log) -> Measured:
    try:
        with TemporaryDirectory() as scratch:
            return asyncio.run(_measure(shape, tokens, plan, Path(scratch), log))
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the evaluation needs more memory than the GPU has ({describe_out_of_memory(error)}); "
            "lower --engine-memory or --slots"
        ) from error


async def _measure(shape: PretrainedConfig, tokens: Tokens, plan: Plan, scratch: Path, log: Log) -> Measured:
    with generated_encyclopedia(plan) as encyclopedia:
        protocol, context = forced_protocol(shape, tokens, plan, encyclopedia)
        policy = random_policy(shape, tokens, default_device())
        engine, agent = build_agent(policy, plan, encyclopedia, protocol, context)
        questions = encyclopedia.questions
        try:
            if plan.warmup:
                warmup = await _evaluate(agent, scratch / "warm-up", questions[: plan.warmup], plan)
                log(f"warm-up: {warmup.asking:.1f} s")
            reset_peak_memory(policy.device)
            agent.tools.searches.calls = 0
            return await _evaluate(agent, scratch / "evaluation", questions[plan.warmup :], plan)
        finally:
            await engine.close()


async def _evaluate(agent: Agent, path: Path, questions: list[Question], plan: Plan) -> Measured:
    about: dict[str, Any] = {"title": "speed", "stamp": {}, "sample": None, "notes": []}
    folder = EvaluationFolder.create_or_resume(path, about, questions)
    lengths: list[tuple[int, int]] = []

    def count(episode: ScoredTrajectory) -> None:
        trajectory = episode.trajectory
        require_full_length([trajectory], plan)
        lengths.append((len(trajectory.ids), len(trajectory.logprobs)))

    asked = await evaluate_folder(agent, folder, concurrent=plan.slots, on_result=count)
    start = monotonic()
    write_report(folder, load_results(folder, asked.results))
    return Measured(
        questions=len(questions),
        asking=asked.seconds,
        scoring=monotonic() - start,
        searches=agent.tools.searches.calls,
        tokens=sum(total for total, _ in lengths),
        sampled=sum(sampled for _, sampled in lengths),
        peak_gib=peak_gib(default_device()),
    )
