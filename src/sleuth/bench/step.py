"""Times a whole Search-R1 step with random weights, part by part, next to published figures."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

import torch
from transformers import PretrainedConfig

from sleuth.bench.episodes import Plan, Rig, assembled_rig, generated_encyclopedia
from sleuth.bench.measurement import Log, Table, default_device, mfu, peak_gib, reset_peak_memory
from sleuth.errors import InputError
from sleuth.model.memory import describe_out_of_memory
from sleuth.model.tokens import Tokens
from sleuth.records import Question

PARTS = ("generate", "score", "train", "optimiser", "publish")
REST = "rest"
# Trajectories per second per H100, from the Search-R1 and RLinf papers; their GPUs and steps differ from ours.
ANCHORS = {"Search-R1": 2.4, "RLinf": 4.3}
LABELS = {
    "trajectories": "trajectories/s",
    "tokens": "tokens/s",
    "sampled": "sampled tokens/s",
    "generating": "sampled tokens/s while generating",
    "training": "tokens/s of forward and backward",
    "mfu": "MFU of forward and backward (6N)",
    "peak_gib": "peak GPU memory, GiB",
    "latency_ms": "mean latency of a search, ms",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured step: the seconds of its parts, which add up to the whole, and its counts.

    Searches overlap with generation: `searching`, the time with a search in flight, is part of `generate`.
    """

    seconds: dict[str, float]
    searching: float
    searches: int
    latency: float
    trajectories: int
    tokens: int
    sampled: int
    updates: int
    mfu: float | None
    peak_gib: float | None

    @property
    def whole(self) -> float:
        return sum(self.seconds.values())


def measure(shape: PretrainedConfig, tokens: Tokens, plan: Plan, log: Log) -> list[Measured]:
    try:
        with (
            generated_encyclopedia(plan) as encyclopedia,
            assembled_rig(shape, tokens, plan, encyclopedia, default_device()) as rig,
        ):
            questions = encyclopedia.questions
            if plan.warmup:
                log(f"warm-up: {measure_step(rig, questions[: plan.warmup], 0).whole:.1f} s")
            steps: list[Measured] = []
            for start in range(plan.warmup, plan.total_questions, plan.questions):
                steps.append(measure_step(rig, questions[start : start + plan.questions], len(steps) + 1))
                parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in steps[-1].seconds.items())
                log(f"step {len(steps)}: {steps[-1].whole:.1f} s ({parts})")
            return steps
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the step needs more memory than the GPU has ({describe_out_of_memory(error)}); lower --engine-memory or "
            "--pack-tokens, or raise --recompute"
        ) from error


def measure_step(rig: Rig, questions: Sequence[Question], number: int) -> Measured:
    policy, searches = rig.learner.policy, rig.agent.tools.searches
    searches.calls, searches.seconds, searches.busy = 0, 0.0, 0.0
    reset_peak_memory(policy.device)
    rig.learner.timer.collect()
    start = monotonic()
    trajectories = rig.step(questions, number)
    whole = monotonic() - start
    times = rig.learner.timer.collect()
    seconds = {name: times.get(f"time/{name}", 0.0) for name in PARTS}
    tokens = sum(len(each.ids) for each in trajectories)
    return Measured(
        seconds={**seconds, REST: whole - sum(seconds.values())},
        searching=searches.busy,
        searches=searches.calls,
        latency=searches.seconds / max(1, searches.calls),
        trajectories=len(trajectories),
        tokens=tokens,
        sampled=sum(len(each.logprobs) for each in trajectories),
        updates=rig.plan.updates(len(trajectories)),
        mfu=mfu(policy.size, tokens, seconds["train"], policy.device),
        peak_gib=peak_gib(policy.device),
    )


def rates(steps: Sequence[Measured]) -> dict[str, float | None]:
    def total(value: Callable[[Measured], float]) -> float:
        return sum(value(step) for step in steps)

    tokens, sampled, whole = total(lambda s: s.tokens), total(lambda s: s.sampled), total(lambda s: s.whole)
    generating, training = total(lambda s: s.seconds["generate"]), total(lambda s: s.seconds["train"])
    used = [step.mfu * step.seconds["train"] for step in steps if step.mfu is not None]
    searches = total(lambda s: s.searches)
    return {
        "trajectories": total(lambda s: s.trajectories) / whole,
        "tokens": tokens / whole,
        "sampled": sampled / whole,
        "generating": sampled / generating,
        "training": tokens / training,
        "mfu": sum(used) / training if used else None,
        "peak_gib": max((step.peak_gib for step in steps if step.peak_gib is not None), default=None),
        "latency_ms": 1e3 * total(lambda s: s.latency * s.searches) / searches if searches else None,
    }


def record(machine: str, name: str, plan: Plan, steps: Sequence[Measured]) -> dict[str, Any]:
    return {
        "machine": machine,
        "shape": name,
        "plan": asdict(plan),
        "steps": [{**asdict(each), "whole": each.whole} for each in steps],
        "rates": rates(steps),
        "anchors": ANCHORS,
    }


def markdown(name: str, plan: Plan, steps: Sequence[Measured]) -> str:
    """Format a table of the parts of a step, and a table of its rates next to published rates."""
    whole = sum(each.whole for each in steps)
    seconds = {part: sum(each.seconds[part] for each in steps) for part in steps[0].seconds}
    first, searching = next(iter(seconds)), sum(each.searching for each in steps)
    shown = {first: seconds.pop(first), "- with a search in flight": searching, **seconds, "whole step": whole}
    rows = [(part, each / len(steps), f"{each / whole:.1%}") for part, each in shown.items()]
    parts = Table(_title(name, plan, steps), ("part", "seconds", "share"), rows)
    own = [(LABELS[label], "-" if value is None else value) for label, value in rates(steps).items()]
    published = [(f"{paper}, trajectories/s per H100, from its paper", rate) for paper, rate in ANCHORS.items()]
    figures = Table("Figures of the step, and published ones", ("figure", "value"), [*own, *published])
    return f"{parts.markdown()}\n\n{figures.markdown()}"


def _title(name: str, plan: Plan, steps: Sequence[Measured]) -> str:
    one = steps[0]
    parts = [
        f"{name}: {plan.questions} questions x {plan.samples}",
        f"{plan.searches} searches",
        f"{one.tokens / one.trajectories:.0f} tokens per trajectory ({one.sampled / one.trajectories:.0f} sampled)",
        "KL" if plan.kl else "no KL",
        f"updates: {one.updates}",
        f"LoRA of rank {plan.lora}" if plan.lora else "all weights",
        *([f"{plan.recompute:.0%} of the layers recomputed"] if plan.recompute else []),
        *([f"mean of {len(steps)} steps"] if len(steps) > 1 else []),
    ]
    return ", ".join(parts)
