"""A plan as Markdown and as JSON."""

from dataclasses import asdict
from typing import Any

from sleuth.page.document import markdown_table
from sleuth.train.accelerators import GIB
from sleuth.train.plan import Plan
from sleuth.train.step_time import Episodes, StepTime, rates_of


def markdown(plan: Plan) -> str:
    """Format tables of the parts, the phases, the seconds and, if the run does not fit, what to set."""
    setup, footprint = plan.setup, plan.footprint
    trained = "all weights" if not setup.rank else f"LoRA of rank {setup.rank}, {setup.trained:,} trained"
    title = (
        f"{plan.model}: {setup.policy.parameters:,} parameters, {trained}, packs of {setup.pack:,} tokens, on "
        f"{setup.device.label or setup.device.name}"
    )
    parts = [(name, _gib(size)) for name, size in footprint.parts.items() if size]
    if footprint.host:
        parts.append(("in host memory: masters and moments", _gib(footprint.host)))
    phases = [(name, _gib(size)) for name, size in footprint.phases.items()]
    overhead = "CUDA, its graphs, fragmentation" if setup.device.is_gpu else "process, copy for checkpoints"
    phases += [(overhead, _gib(footprint.overhead)), ("needed", _gib(footprint.needed))]
    sections = [
        [f"**{title}**"],
        markdown_table(("memory", "GiB"), parts),
        markdown_table(("peak in the phase", "GiB"), phases),
        [f"**{plan.verdict}**: {_gib(footprint.needed)} of {_gib(plan.capacity)} GiB."],
        markdown_table(("seconds per step", "typical", "longest"), _seconds(plan)),
        [_assumptions(plan)],
    ]
    if plan.options:
        rows = [
            (
                each.line.replace("--set ", "") or "-",
                each.cost,
                _gib(each.footprint.needed),
                f"{each.seconds.total:.3g}",
            )
            for each in plan.options
        ]
        sections.append(["It fits with one of these, the cheapest first:"])
        sections.append(markdown_table(("set", "cost", "GiB", "seconds per step"), rows))
    elif not plan.fits:
        sections.append(["No setting makes it fit: choose a smaller model, a larger GPU, or several GPUs."])
    sections += [[f"Warning: {each}."] for each in plan.warnings]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _seconds(plan: Plan) -> list[tuple[str, str, str]]:
    typical, longest = seconds(plan.seconds), seconds(plan.upper_bound)
    return [(name, f"{typical[name]:.3g}", f"{longest[name]:.3g}") for name in typical]


def _assumptions(plan: Plan) -> str:
    rates = rates_of(plan.setup)
    return (
        f"Typical: {_episodes(plan.episodes)}. Longest: {_episodes(plan.longest)}. "
        f"Rates measured on {rates.machine}, at commit {rates.commit}, and scaled."
    )


def _episodes(episodes: Episodes) -> str:
    return f"{episodes.count:,} episodes of {episodes.tokens:,} tokens, {episodes.sampled:,} of them sampled"


def seconds(time: StepTime) -> dict[str, float]:
    """Seconds of each phase, and their sum."""
    return {**asdict(time), "total": time.total}


def record(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values for JSON; sizes in bytes."""
    setup, footprint, rates = plan.setup, plan.footprint, rates_of(plan.setup)
    return {
        "model": plan.model,
        "device": {"name": setup.device.name, "memory": setup.device.memory, "free": plan.capacity},
        "parameters": setup.policy.parameters,
        "trained": setup.trained,
        "pack_tokens": setup.pack,
        **asdict(footprint),
        "peak": footprint.peak,
        "needed": footprint.needed,
        "verdict": plan.verdict,
        "fits": plan.fits,
        "seconds": {"typical": seconds(plan.seconds), "longest": seconds(plan.upper_bound)},
        "episodes": {"typical": asdict(plan.episodes), "longest": asdict(plan.longest)},
        "rates": {"machine": rates.machine, "commit": rates.commit},
        "options": [
            {
                "settings": each.settings,
                "cost": each.cost,
                "needed": each.footprint.needed,
                "seconds": each.seconds.total,
            }
            for each in plan.options
        ],
        "warnings": list(plan.warnings),
    }
