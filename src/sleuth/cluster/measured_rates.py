"""Rates of a cluster measured in finished runs, from their metrics and trajectories.

A run does not record its decode steps. They are found by replaying its episodes in the simulation: the seconds of
each step's rollouts are then a sum of costs per decode step, decoded token, prefilled token and turn, which is fitted
by least squares. What the runs leave open stays as the planner predicts it, up to a common factor.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sleuth.cluster.rates import ClusterRates, EpisodeShape, GroupShape, TurnShape
from sleuth.cluster.scenario import Scenario, describe_scenario
from sleuth.cluster.simulation import Simulation, predict
from sleuth.config import recipe
from sleuth.errors import InputError
from sleuth.runs.json_files import read_rows
from sleuth.runs.run import Run
from sleuth.runs.trajectory import segment_rows

NEEDED = ("time/episodes", "time/reward", "time/step", "time/generate", "episode/tokens_all")
CALLS = ("search", "access", "tool")
ITERATIONS = 4
RIDGE = 0.03  # weight of the planner's proportions beside the measured steps
MIN_OVERLAP = 0.25


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step of a run: its scenario, metrics and groups of episodes."""

    scenario: Scenario
    metrics: Mapping[str, float]
    groups: tuple[GroupShape, ...]

    @property
    def rollout_seconds(self) -> float:
        return self.metrics["time/episodes"] - self.metrics["time/reward"]


def measure_rates(runs: Sequence[Run], base: ClusterRates, device: str) -> ClusterRates:
    """Measure the rates in runs of one process on a type of device; `base` has the planner's."""
    steps = [step for run in runs for step in measured_steps(run, device)]
    alone = [step for step in steps if step.scenario.mode == "sync"]
    overlapping = [step for step in steps if step.scenario.mode != "sync"]
    # With rollouts beside training only, the rates include what the two take from each other.
    rates = _fit_worker(alone or steps, _fit_trainer(alone or steps, base))
    rates = replace(
        rates,
        source=f"measured in {', '.join(str(run.path) for run in runs)}",
        groups=tuple(group for step in steps for group in step.groups),
        overlap=1.0 if not alone else base.overlap,
    )
    return replace(rates, overlap=_fit_overlap(overlapping, rates)) if alone and overlapping else rates


def measured_steps(run: Run, device: str) -> Iterator[MeasuredStep]:
    """Yield the steps of a run, without the first, in which caches and threads warm up."""
    config = recipe.restore(run.config_and_inputs()[0])
    scenario = describe_scenario(config, device)
    rows = [row for row in run.metrics() if all(name in row for name in NEEDED)]
    if len(rows) < 2:
        raise InputError(f"{run.path} has {len(rows)} training steps with times; expected 2 or more, train longer")
    for row in rows[1:]:
        yield MeasuredStep(scenario, row, tuple(read_groups(run, int(row["step"]))))


def read_groups(run: Run, step: int) -> Iterator[GroupShape]:
    """Yield the groups of a step with the lengths of their turns."""
    by_group: dict[int, list[EpisodeShape]] = defaultdict(list)
    for row in read_rows(run.trajectories(step)):
        by_group[row["group"]].append(_shape(row, f"{run.trajectories(step)}, question {row['question_id']}"))
    yield from map(tuple, by_group.values())


def _shape(row: Mapping[str, object], place: str) -> EpisodeShape:
    segments = segment_rows(row)
    turns, score = row.get("turns"), row.get("score")
    if len(segments) != 1 or not isinstance(turns, list):
        raise InputError(f"{place} has {len(segments)} segments; rates are measured in runs of Sleuth's own agent")
    given = 0
    shapes: list[TurnShape] = []
    for kind, length in segments[0]["origin"]:
        if kind == "given":
            given += length
            continue
        action = turns[len(shapes)]["action"] if len(shapes) < len(turns) else None
        shapes.append(TurnShape(given, length, action in CALLS))
        given = 0
    if not shapes:
        shapes = [TurnShape(given, 0, False)]
    shapes[-1] = replace(shapes[-1], searches=False)
    return EpisodeShape(tuple(shapes), score["total"] if isinstance(score, dict) else None)


def _fit_trainer(steps: Sequence[MeasuredStep], base: ClusterRates) -> ClusterRates:
    """Measure tokens per second with and without gradients, and the seconds of optimiser and publishing."""
    total: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        for name, value in step.metrics.items():
            total[name] += value
    timed = sum(total[f"time/{name}"] for name in ("generate", "reward", "train", "optimiser", "publish"))
    rest = max(0.0, total["time/step"] - timed)
    searches = sum(step.metrics.get("search/latency", 0.0) * step.metrics.get("search/count", 0.0) for step in steps)
    return replace(
        base,
        train=total["train/tokens"] / total["time/train"] if total["time/train"] else base.train,
        score=total["episode/tokens_all"] / (rest + total["time/reward"]) if rest + total["time/reward"] else None,
        step=total["time/optimiser"] / len(steps),
        transfer=base.weights * len(steps) / total["time/publish"] if total["time/publish"] else base.transfer,
        search=searches / total["search/count"] if total["search/count"] else base.search,
    )


def _fit_worker(steps: Sequence[MeasuredStep], base: ClusterRates) -> ClusterRates:
    """Fit the costs of decode step, decoded token, prefilled token and turn to the seconds of the rollouts."""
    largest = max(count for count, _ in base.decode)
    per_token = (base.decode_step(largest) - base.decode_step(1)) / max(1, largest - 1)
    prior = np.array([base.decode_step(1) - per_token, per_token, 1 / base.prefill, base.turn]).clip(min=1e-9)
    rates = base
    for _ in range(ITERATIONS):
        replays = [_replay(step, rates) for step in steps]
        work = np.array([[w.steps, w.tokens, w.prefilled, w.turns] for w in (each.workers[0].work for each in replays)])
        waited = np.array([each.collected - each.workers[0].waiting.busy for each in replays])
        measured = np.array([step.rollout_seconds for step in steps])
        costs = _fit_costs(work, (measured - waited).clip(min=0.1 * measured), prior)
        counts = sorted({1, largest, *(count for count, _ in base.decode)})
        # The measured latency includes the time in which a search waits for others.
        asked = sum(each.workers[0].work.searched for each in replays)
        waits = sum(each.workers[0].work.search_seconds for each in replays)
        rates = replace(
            rates,
            decode=tuple((count, float(count / (costs[0] + count * costs[1]))) for count in counts),
            prefill=float(1 / costs[2]),
            turn=float(costs[3]),
            search=rates.search * base.search * asked / waits if waits else rates.search,
        )
    return rates


def _replay(step: MeasuredStep, rates: ClusterRates) -> Simulation:
    """Simulate the rollouts of a step with the episodes that it had."""
    scenario = replace(step.scenario, questions=len(step.groups), mode="sync", staleness=0)
    simulation = Simulation(scenario, rates, iter(step.groups), steps=1)
    simulation.run()
    return simulation


def _fit_costs(work: np.ndarray, seconds: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return non-negative costs with which the work takes these seconds, close to the prior's proportions."""
    scaled = work * prior
    factor = seconds.sum() / scaled.sum()
    # Ridge regression towards `factor`, by coordinate descent; the rows are relative to the mean step.
    rows, target = scaled / seconds.mean(), seconds / seconds.mean()
    weight = RIDGE * len(seconds) / factor**2
    found = np.full(len(prior), factor)
    for _ in range(200):
        for column in range(len(prior)):
            others = target - rows @ found + rows[:, column] * found[column]
            gradient = rows[:, column] @ others + weight * factor
            found[column] = max(1e-3 * factor, gradient / (rows[:, column] @ rows[:, column] + weight))
    costs: np.ndarray = found * prior * (seconds.sum() / (scaled @ found).sum())
    return costs


def _fit_overlap(steps: Sequence[MeasuredStep], rates: ClusterRates) -> float:
    """Find the speed at which trainer and engine run beside each other, by bisection on the seconds of the steps."""
    measured: dict[Scenario, list[float]] = defaultdict(list)
    for step in steps:
        measured[step.scenario].append(step.metrics["time/step"])
    low, high = MIN_OVERLAP, 1.0
    for _ in range(8):
        middle = (low + high) / 2
        with_overlap = replace(rates, overlap=middle)
        found = sum(predict(scenario, with_overlap).step_seconds * len(each) for scenario, each in measured.items())
        low, high = (middle, high) if found > sum(map(sum, measured.values())) else (low, middle)
    return (low + high) / 2
