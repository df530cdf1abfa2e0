"""What the parts of a step came to, as tables, beside what others have published."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sleuth.bench.plan import Plan
from sleuth.bench.step import Measured
from sleuth.bench.table import Table

# Trajectories a second and H100, from the papers of Search-R1 and RLinf; a GPU and a step of theirs, not of ours.
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


def rates(steps: Sequence[Measured]) -> dict[str, float | None]:
    """Figures over all steps together; None for what only a GPU has."""
    tokens, sampled = sum(each.tokens for each in steps), sum(each.sampled for each in steps)
    whole, generating, training = (
        sum(each.whole for each in steps),
        *(sum(each.seconds[part] for each in steps) for part in ("generate", "train")),
    )
    used = [each.mfu * each.seconds["train"] for each in steps if each.mfu is not None]
    waited, searches = (sum(each.latency * each.searches for each in steps), sum(each.searches for each in steps))
    return {
        "trajectories": sum(each.trajectories for each in steps) / whole,
        "tokens": tokens / whole,
        "sampled": sampled / whole,
        "generating": sampled / generating,
        "training": tokens / training,
        "mfu": sum(used) / training if used else None,
        "peak_gib": max((each.peak_gib for each in steps if each.peak_gib is not None), default=None),
        "latency_ms": 1e3 * waited / searches if searches else None,
    }


def markdown(name: str, plan: Plan, steps: Sequence[Measured]) -> str:
    """All of it, to print."""
    return f"{_parts(name, plan, steps).markdown()}\n\n{_rates(steps).markdown()}"


def record(machine: str, name: str, plan: Plan, steps: Sequence[Measured]) -> dict[str, Any]:
    """All of it, to keep."""
    return {
        "machine": machine,
        "shape": name,
        "plan": asdict(plan),
        "steps": [{**asdict(each), "whole": each.whole} for each in steps],
        "rates": rates(steps),
        "anchors": ANCHORS,
    }


def _parts(name: str, plan: Plan, steps: Sequence[Measured]) -> Table:
    whole = sum(each.whole for each in steps)
    seconds = {part: sum(each.seconds[part] for each in steps) for part in steps[0].seconds}
    first, searching = next(iter(seconds)), sum(each.searching for each in steps)
    shown = {first: seconds.pop(first), "- with a search under way": searching, **seconds, "whole step": whole}
    rows = [(part, each / len(steps), f"{each / whole:.1%}") for part, each in shown.items()]
    return Table(_title(name, plan, steps), ("part", "seconds", "share"), rows)


def _title(name: str, plan: Plan, steps: Sequence[Measured]) -> str:
    one = steps[0]
    told = [
        f"{name}: {plan.questions} questions x {plan.samples}",
        f"{plan.searches} searches",
        f"{one.tokens / one.trajectories:.0f} tokens a trajectory ({one.sampled / one.trajectories:.0f} sampled)",
        "KL" if plan.kl else "no KL",
        f"updates: {one.updates}",
        f"LoRA of rank {plan.lora}" if plan.lora else "all weights",
        *([f"{plan.recompute:.0%} of the layers computed again"] if plan.recompute else []),
        *([f"mean of {len(steps)} steps"] if len(steps) > 1 else []),
    ]
    return ", ".join(told)


def _rates(steps: Sequence[Measured]) -> Table:
    rows: list[tuple[str, object]] = [
        (LABELS[name], "-" if each is None else each) for name, each in rates(steps).items()
    ]
    published = [(f"{name}, trajectories/s per H100, from its paper", rate) for name, rate in ANCHORS.items()]
    return Table("Figures of the step, and published ones", ("figure", "value"), [*rows, *published])
