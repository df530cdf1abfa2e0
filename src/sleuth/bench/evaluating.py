"""The speed of an evaluation on random weights: questions asked, searched for, scored and written down.

Episodes are as long as asked for, whatever the model says, as in a measured step; nothing else is different from
`sleuth evaluate`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import torch
from transformers import PretrainedConfig

from sleuth.agent.episode import Agent
from sleuth.bench import policies
from sleuth.bench.device import forget_peak, here, peak_gib
from sleuth.bench.encyclopedia import generated
from sleuth.bench.plan import Plan
from sleuth.bench.rig import forced, require_whole, seated
from sleuth.bench.table import Table
from sleuth.errors import InputError
from sleuth.evaluate.folder import EvaluationFolder
from sleuth.evaluate.report import load_results, write_report
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.evaluate.runner import evaluate_folder
from sleuth.model.memory import describe_out_of_memory
from sleuth.model.tokens import Tokens
from sleuth.records import Question

SEARCH_R1 = 51_713  # questions of its seven sets
ANCHOR = ("verl, 51,713 questions on 8 H20, as published, s", 6_000)


@dataclass(frozen=True, slots=True)
class Measured:
    """Questions asked in so many seconds, what they took, and the seconds in which the figures were made of them."""

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
        """Every figure, and what the whole of Search-R1's protocol would take."""
        each = (
            f"{plan.searches} searches, {self.tokens / self.questions:.0f} tokens ({plan.sampled} sampled) a question"
        )
        rows: list[tuple[str, object]] = [
            ("questions/s", self.rate),
            ("sampled tokens/s", self.sampled / self.asking),
            ("asking, s", self.asking),
            ("scoring and writing the figures, s", self.scoring),
            ("peak GPU memory, GiB", "-" if self.peak_gib is None else self.peak_gib),
            (f"{SEARCH_R1:,} questions at this rate, s", SEARCH_R1 / self.rate),
            ANCHOR,
        ]
        title = f"{name}: {self.questions:,} questions greedily, {plan.slots:,} in flight, {each}"
        return Table(title, ("figure", "value"), rows)


def measure(shape: PretrainedConfig, tokens: Tokens, plan: Plan, heard: Callable[[str], None]) -> Measured:
    """An evaluation after its warm-up, on the GPU or the CPU of this machine."""
    try:
        with TemporaryDirectory() as scratch:
            return asyncio.run(_measured(shape, tokens, plan, Path(scratch), heard))
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the evaluation needs more memory than the GPU has ({describe_out_of_memory(error)}); "
            "lower --engine-memory or --slots"
        ) from error


async def _measured(
    shape: PretrainedConfig, tokens: Tokens, plan: Plan, scratch: Path, heard: Callable[[str], None]
) -> Measured:
    with generated(plan.passages, plan.asked) as encyclopedia:
        protocol, context = forced(shape, tokens, plan, encyclopedia)
        policy = policies.policy(shape, tokens, here())
        engine, agent = seated(policy, plan, encyclopedia, protocol, context)
        questions = encyclopedia.questions
        try:
            if plan.warmup:
                warm = await _asked(agent, scratch / "warm-up", questions[: plan.warmup], plan)
                heard(f"warm-up: {warm.asking:.1f} s")
            forget_peak(policy.device)
            agent.tools.searches.calls = 0
            return await _asked(agent, scratch / "evaluation", questions[plan.warmup :], plan)
        finally:
            await engine.close()


async def _asked(agent: Agent, path: Path, questions: list[Question], plan: Plan) -> Measured:
    about: dict[str, Any] = {"title": "speed", "stamp": {}, "sample": None, "notes": []}
    folder = EvaluationFolder.create_or_resume(path, about, questions)
    lengths: list[tuple[int, int]] = []

    def count(episode: ScoredTrajectory) -> None:
        trajectory = episode.trajectory
        require_whole([trajectory], plan)
        lengths.append((len(trajectory.ids), len(trajectory.logprobs)))

    asking = await evaluate_folder(agent, folder, concurrent=plan.slots, on_result=count)
    began = monotonic()
    write_report(folder, load_results(folder))
    return Measured(
        questions=len(questions),
        asking=asking,
        scoring=monotonic() - began,
        searches=agent.tools.searches.calls,
        tokens=sum(every for every, _ in lengths),
        sampled=sum(sampled for _, sampled in lengths),
        peak_gib=peak_gib(here()),
    )
