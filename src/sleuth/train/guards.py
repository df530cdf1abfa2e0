"""What ends a run: each guard raises TrainingStopped with its reason, and leaves the checkpoints as they are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NoReturn

from sleuth.errors import EngineFailure, TrainingStopped
from sleuth.records import StopReason, Trajectory

BROKEN = "begin a new run with a lower train.learning_rate"


def episodes(trajectories: Sequence[Trajectory], search_failures: float) -> None:
    """Too many episodes lost to failed searches, or none left to learn from."""
    stops = Counter(trajectory.stop for trajectory in trajectories)
    cause = next((f", for example: {each.failure}" for each in trajectories if each.failure), "")
    lost = stops[StopReason.SEARCH_UNAVAILABLE] / len(trajectories)
    if lost > search_failures:
        raise TrainingStopped(
            f"{lost:.0%} of the episodes were lost to failed searches, more than {search_failures:.0%}{cause}; "
            "mend the search engine and resume the run"
        )
    if not any(reason.usable for reason in stops):
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in stops.items())
        raise TrainingStopped(
            f"no episode was usable ({reasons}){cause}; mend what failed and resume the run, or {BROKEN}"
        )


def engine(failure: EngineFailure) -> NoReturn:
    """An engine that breaks before the first question is asked."""
    raise TrainingStopped(f"{failure}; mend what failed and resume the run, or {BROKEN}") from failure


def gradient(norm: float) -> None:
    """A gradient that is no number, or endless."""
    if not isfinite(norm):
        raise TrainingStopped(f"the gradient norm is {norm}, so the weights were left as they are; {BROKEN}")


def metrics(values: Mapping[str, float]) -> None:
    """A metric that no record can hold, such as one of a loss function of the user's own."""
    for name, value in values.items():
        if not isfinite(value):
            raise TrainingStopped(f"{name} is {value}; mend the function it comes from, or {BROKEN}")
