"""A whole step of Search-R1 on random weights, measured part by part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import torch
from transformers import PretrainedConfig

from sleuth.bench.device import forget_peak, here, mfu, peak_gib
from sleuth.bench.encyclopedia import generated
from sleuth.bench.plan import Plan
from sleuth.bench.rig import Rig, assembled
from sleuth.errors import InputError
from sleuth.model.memory import describe_out_of_memory
from sleuth.model.tokens import Tokens
from sleuth.records import Question

PARTS = ("generate", "score", "train", "optimiser", "publish")
REST = "rest"

Heard = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """A step: the seconds of its parts, which add up to the whole, and what was done in them.

    Searches go on while others generate: `searching`, the seconds in which one was under way, lies within `generate`.
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


def measure(shape: PretrainedConfig, tokens: Tokens, plan: Plan, heard: Heard) -> list[Measured]:
    """The steps of a plan after its warm-up, on the GPU or the CPU of this machine."""
    try:
        return _measured(shape, tokens, plan, heard)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the step needs more memory than the GPU has ({describe_out_of_memory(error)}); lower --engine-memory or "
            "--pack-tokens, or raise --recompute"
        ) from error


def _measured(shape: PretrainedConfig, tokens: Tokens, plan: Plan, heard: Heard) -> list[Measured]:
    with (
        generated(plan.passages, plan.asked) as encyclopedia,
        assembled(shape, tokens, plan, encyclopedia, here()) as rig,
    ):
        questions = encyclopedia.questions
        if plan.warmup:
            heard(f"warm-up: {one(rig, questions[: plan.warmup], 0).whole:.1f} s")
        found: list[Measured] = []
        for start in range(plan.warmup, plan.asked, plan.questions):
            found.append(one(rig, questions[start : start + plan.questions], len(found) + 1))
            parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found[-1].seconds.items())
            heard(f"step {len(found)}: {found[-1].whole:.1f} s ({parts})")
        return found


def one(rig: Rig, questions: Sequence[Question], number: int) -> Measured:
    """One step on the questions."""
    policy, waits = rig.learner.policy, rig.agent.tools.searches
    waits.calls, waits.seconds, waits.busy = 0, 0.0, 0.0
    forget_peak(policy.device)
    rig.learner.timer.collect()
    began = monotonic()
    found = rig.step(questions, number)
    whole = monotonic() - began
    taken = rig.learner.timer.collect()
    seconds = {name: taken.get(f"time/{name}", 0.0) for name in PARTS}
    tokens = sum(len(each.ids) for each in found)
    return Measured(
        seconds={**seconds, REST: whole - sum(seconds.values())},
        searching=waits.busy,
        searches=waits.calls,
        latency=waits.seconds / max(1, waits.calls),
        trajectories=len(found),
        tokens=tokens,
        sampled=sum(len(each.logprobs) for each in found),
        updates=rig.plan.updates(len(found)),
        mfu=mfu(policy.size, tokens, seconds["train"], policy.device),
        peak_gib=peak_gib(policy.device),
    )
