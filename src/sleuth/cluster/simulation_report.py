"""Predictions of the simulation as Markdown and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sleuth.cluster.rates import ClusterRates
from sleuth.cluster.recommendation import Placement
from sleuth.cluster.scenario import Scenario
from sleuth.cluster.simulation import Prediction
from sleuth.page.document import markdown_table

GIGA = 1e9


def prediction_markdown(name: str, scenario: Scenario, rates: ClusterRates, prediction: Prediction) -> str:
    """Format a prediction and the rates that it depends on."""
    title = f"**{name}: {describe_placement(scenario)}, {describe_mode(scenario)} (predicted)**"
    rows = [
        ("trajectories per second", f"{prediction.trajectories_per_second:.3g}"),
        ("seconds per step", f"{prediction.step_seconds:.3g}"),
        ("trainer: training", _percent(prediction.trainer["train"])),
        ("trainer: sending weights", _percent(prediction.trainer["publish"])),
        ("trainer: idle", _percent(prediction.trainer["idle"])),
        ("rollout workers: generating", _percent(prediction.rollouts["busy"])),
        ("rollout workers: waiting for searches only", _percent(prediction.rollouts["search"])),
        ("rollout workers: waiting for weights", _percent(prediction.rollouts["weights"])),
        ("staleness, mean", f"{prediction.staleness_mean:.2f}"),
        ("staleness, maximum", str(prediction.staleness_max)),
    ]
    sections = [[title], markdown_table(("", "value"), rows), _rates_table(rates), [_footnote(scenario, rates)]]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _rates_table(rates: ClusterRates) -> list[str]:
    most = max(count for count, _ in rates.decode)
    sampled, tokens = rates.mean_tokens
    rows = [
        ("decode, tokens/s, 1 sequence", f"{1 / rates.decode_step(1):,.0f}"),
        (f"decode, tokens/s, {most} sequences", f"{most / rates.decode_step(most):,.0f}"),
        ("prefill, tokens/s", f"{rates.prefill:,.0f}"),
        ("host, ms per turn", f"{1000 * rates.turn:.3g}"),
        ("train, tokens/s per trainer", f"{rates.train:,.0f}"),
        ("score, tokens/s per trainer", "-" if rates.score is None else f"{rates.score:,.0f}"),
        ("weights, GB", f"{rates.weights / GIGA:.3g}"),
        ("weight transfer, s", f"{rates.publish:.3g}"),
        ("search, s", f"{rates.search:.3g}"),
        ("tokens per trajectory: sampled, all", f"{sampled:.0f}, {tokens:.0f}"),
    ]
    return markdown_table(("rate", "value"), rows)


def _footnote(scenario: Scenario, rates: ClusterRates) -> str:
    return f"Rates: {rates.source}. {scenario.steps} steps after {scenario.warmup} of warm-up, seed {scenario.seed}."


def recommendation_markdown(name: str, source: str, placements: Sequence[Placement]) -> str:
    """Format the best placements; the fastest of each number of GPUs is bold."""
    best = {
        gpus: max(each.prediction.trajectories_per_second for each in placements if each.scenario.gpus == gpus)
        for gpus in {each.scenario.gpus for each in placements}
    }
    rows = []
    for each in placements:
        scenario, found = each.scenario, each.prediction
        speed = f"{found.trajectories_per_second:.3g}"
        rows.append(
            (
                str(scenario.gpus),
                describe_mode(scenario),
                describe_placement(scenario),
                f"**{speed}**" if found.trajectories_per_second == best[scenario.gpus] else speed,
                f"{found.step_seconds:.3g}",
                _percent(found.trainer["idle"]),
                _percent(found.rollouts["busy"]),
                _percent(found.rollouts["search"]),
                _percent(found.rollouts["weights"]),
                f"{found.staleness_mean:.1f}, {found.staleness_max}",
            )
        )
    header = ("GPUs", "mode", "placement", "trajectories/s", "s per step", "trainer idle", "rollouts busy")
    table = markdown_table((*header, "search", "weights", "staleness mean, max"), rows)
    sections = [[f"**{name}: best placements (predicted)**"], table, [f"Rates: {source}."]]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def describe_placement(scenario: Scenario) -> str:
    if scenario.rollouts is None:
        return f"{scenario.trainers} shared"
    return f"{scenario.trainers} trainers + {scenario.rollouts} rollouts"


def describe_mode(scenario: Scenario) -> str:
    return f"async, staleness {scenario.staleness}" if scenario.mode == "async" else scenario.mode


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def prediction_row(scenario: Scenario, prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as plain values for JSON."""
    return {"predicted": True, "scenario": asdict(scenario), **asdict(prediction)}
