"""The best split of a number of GPUs into trainers and rollout workers, found by simulation."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

from sleuth.cluster.rates import ClusterRates
from sleuth.cluster.scenario import Mode, Scenario
from sleuth.cluster.simulation import Prediction, predict
from sleuth.errors import ConfigError

STEPS = 3  # simulated per candidate, after the warm-up

# The rates of so many trainers, which are `separate` from the rollout workers or not; None if they do not fit.
RatesOf = Callable[[int, bool], ClusterRates | None]


@dataclass(frozen=True, slots=True)
class Placement:
    """A scenario with its prediction."""

    scenario: Scenario
    prediction: Prediction


def recommend(gpus: int, scenario: Scenario, rates_of: RatesOf, staleness: int) -> list[Placement]:
    """Return the best placement of each mode: sync on shared GPUs, and all modes on separate ones."""
    shared = _simulate(replace(scenario, trainers=gpus, rollouts=None), "sync", 0, rates_of)
    found = [] if shared is None else [shared]
    # Where the phases take turns, their shares of the time are the shares of the GPUs that balance them.
    balance = 0.5 if shared is None else shared.prediction.trainer["train"]
    modes: list[tuple[Mode, int]] = [("sync", 0), ("ahead", 1), ("async", staleness)]
    for mode, bound in modes if gpus > 1 else []:
        simulate = partial(_simulate, mode=mode, staleness=bound, rates_of=rates_of)
        if best := _best_split(gpus, balance, simulate, scenario):
            found.append(best)
    if not found:
        raise ConfigError(f"the model does not fit on {gpus} of these GPUs; sleuth plan shows what needs the memory")
    return found


def _best_split(
    gpus: int, balance: float, simulate: Callable[[Scenario], Placement | None], scenario: Scenario
) -> Placement | None:
    """Climb from the balanced split in eighths of the GPUs, then in sixteenths."""

    @cache
    def speed(trainers: int) -> float:
        found = at(trainers)
        return 0.0 if found is None else found.prediction.trajectories_per_second

    @cache
    def at(trainers: int) -> Placement | None:
        return simulate(replace(scenario, trainers=trainers, rollouts=gpus - trainers))

    best = min(gpus - 1, max(1, round(8 * balance) * gpus // 8))
    if not speed(best):  # more trainers need less memory each
        best = next((each for each in range(best + 1, gpus) if speed(each)), best)
    for stride in (max(1, gpus // 8), max(1, gpus // 16)):
        while True:
            nearby = [each for each in (best - stride, best + stride) if 0 < each < gpus]
            better = max(nearby, key=speed, default=best)
            if speed(better) <= speed(best):
                break
            best = better
    return at(best)


def _simulate(scenario: Scenario, mode: Mode, staleness: int, rates_of: RatesOf) -> Placement | None:
    rates = rates_of(scenario.trainers, scenario.rollouts is not None)
    if rates is None:
        return None
    scenario = replace(scenario, mode=mode, staleness=staleness, steps=STEPS)
    return Placement(scenario, predict(scenario, rates))
