"""Guards: a run watches itself, step by step, and says what it saw and what is done about it.

They know nothing but the metrics recorded and the rollbacks made, so that a resumed run is judged like one that was
never interrupted. Few things end a run whatever the settings: those raise TrainingStopped here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import NoReturn, cast

from sleuth.config.guards import GuardsConfig
from sleuth.engines.base import NOT_FINITE
from sleuth.errors import EngineFailure, TrainingStopped
from sleuth.records import StopReason, Trajectory
from sleuth.train.signs import REMEDY, SIGNS, UNUSABLE, Reading, share_of
from sleuth.train.verdict import Action, Verdict

NON_FINITE = "non_finite"


class NotFinite(TrainingStopped):
    """The engine met weights that are not finite, or that compute what is not; in a step, a guard decides."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"{sentence}; check model.policy and model.dtype, or {REMEDY}")
        self.sentence = sentence


class Guards:
    """Judges steps against the steps before them, of which `history` holds the metrics, oldest first."""

    def __init__(self, config: GuardsConfig, history: Iterable[Mapping[str, float]] = (), rollbacks: int = 0) -> None:
        self.config = config
        self.rollbacks = rollbacks
        self._past: dict[str, list[float]] = {name: [] for name in SIGNS}
        for metrics in history:
            self.remember(metrics)

    @property
    def rate(self) -> float:
        """What the learning rate is multiplied by after the rollbacks made so far."""
        return float(self.config.rollback_rate**self.rollbacks)

    def admits(self, norm: float, loss: float = 0.0) -> Verdict | None:
        """Judges an update before it is made: it is applied where there is no verdict, or one that only warns."""
        for name, value in (("loss", loss), ("gradient norm", norm)):
            if not isfinite(value):
                return self._verdict(NON_FINITE, value, nan, f"the {name} is {value}")
        return self._judged("gradient_norm", norm, "")

    def gate(self, said: list[Verdict]) -> Callable[[float], bool]:
        """`admits` as a learner asks it, by yes and no; the verdicts are added to `said`."""

        def admitted(norm: float) -> bool:
            verdict = self.admits(norm)
            said.extend([verdict] if verdict else [])
            return verdict is None or verdict.applies

        return admitted

    def verdicts(self, metrics: Mapping[str, float], causes: Mapping[str, str] | None = None) -> list[Verdict]:
        """Judges the metrics that are there, those of episodes before they are learned or those of a whole step.

        `causes` has an example of a failure for each metric of lost episodes. The gradient norm is left to `admits`,
        and nothing is remembered.
        """
        broken = {name: value for name, value in metrics.items() if not isfinite(value)}
        found = [self._verdict(NON_FINITE, value, nan, f"{name} is {value}") for name, value in broken.items()][:1]
        seen = {name: _first(metrics, SIGNS[name].metrics) for name in SIGNS if name != "gradient_norm"}
        told = {name: (causes or {}).get(SIGNS[name].metrics[0], "") for name in seen}
        judged = [self._judged(name, value, told[name]) for name, value in seen.items() if value is not None]
        return [*found, *(verdict for verdict in judged if verdict is not None)]

    def broken(self, what: str) -> Verdict:
        """The verdict on weights that are not finite, or compute what is not; they are applied, so skip rolls back."""
        action: Action = "stop" if self.config.non_finite == "stop" else "rollback"
        return self._verdict(NON_FINITE, nan, nan, what, action)

    def remember(self, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of a step that was recorded as the newest of the past."""
        for name, past in self._past.items():
            value = _first(metrics, SIGNS[name].metrics)
            if value is not None:
                past.append(value)

    def _judged(self, name: str, value: float, cause: str) -> Verdict | None:
        threshold = getattr(self.config, name)
        if self.config.actions[name] == "off":
            return None
        reading: Reading | None = SIGNS[name].rule(self._past[name], value, threshold, self.config.window)
        if reading is None or not reading.crossed:
            return None
        sentence = SIGNS[name].words.format(value=reading.value, limit=reading.limit, knob=threshold, cause=cause)
        return self._verdict(name, reading.value, reading.limit, sentence)

    def _verdict(self, name: str, value: float, limit: float, sentence: str, action: Action | None = None) -> Verdict:
        """The verdict with the guard's own action, or another; a rollback too many becomes the end of the run."""
        action = action or cast(Action, self.config.actions[name])
        if action == "rollback" and self.rollbacks >= self.config.rollbacks:
            spent = f", and guards.rollbacks = {self.config.rollbacks} allows no further rollback"
            return Verdict(name, "stop", value, limit, sentence + spent)
        return Verdict(name, action, value, limit, sentence)


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that a record can hold."""
    return {name: value for name, value in metrics.items() if isfinite(value)}


def last_good(saved: Iterable[int], step: int, stale: int = 0) -> int:
    """The newest checkpoint that a later step has proven, for trouble in `step`; 0 is the model the run began with.

    The episodes of a step are sampled by the weights of the one before, or of `stale` steps before that: trouble seen
    in them came with an earlier update, and a checkpoint is proven by the step that was sampled from it.
    """
    return max((each for each in saved if each <= step - 2 - stale), default=0)


def stop(verdict: Verdict) -> NoReturn:
    """Ends the run by a verdict."""
    remedy = SIGNS[verdict.guard].remedy if verdict.guard in SIGNS else f"mend what it comes from, or {REMEDY}"
    raise TrainingStopped(f"{verdict.sentence}; {remedy}")


def no_target(verdict: Verdict | None, folder: Path) -> NoReturn:
    """Ends a run whose rollback has no checkpoint to go back to; the later ones stay."""
    said = verdict.sentence if verdict is not None else "a guard asked for a rollback"
    raise TrainingStopped(
        f"{said}, and the checkpoint to roll back to, {folder}, does not exist; put it back and resume the "
        f"run, or {REMEDY}"
    )


def shares(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The share of the episodes that ended for each reason, and of those lost to any failure."""
    counts = Counter(trajectory.stop for trajectory in trajectories)
    ended = {share_of(reason): counts[reason] / len(trajectories) for reason in StopReason}
    lost = sum(counts[reason] for reason in StopReason if not reason.usable)
    return {**ended, UNUSABLE: lost / len(trajectories)}


def causes(trajectories: Iterable[Trajectory]) -> dict[str, str]:
    """For each metric of lost episodes an example of the failure, for the end of a sentence."""
    found: dict[str, str] = {}
    for each in trajectories:
        if each.failure:
            for metric in (share_of(each.stop), UNUSABLE):
                found.setdefault(metric, f", for example: {each.failure}")
    return found


def usable(trajectories: Sequence[Trajectory]) -> None:
    """Raises NotFinite where the engine met such numbers, and ends the run where no episode is left to learn from."""
    broken = [each.failure for each in trajectories if each.failure and NOT_FINITE in each.failure]
    if broken:
        raise NotFinite(f"{len(broken)} of {len(trajectories)} episodes were lost, for example: {broken[0]}")
    stops = Counter(trajectory.stop for trajectory in trajectories)
    if not any(reason.usable for reason in stops):
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in stops.items())
        example = causes(trajectories).get(UNUSABLE, "")
        fault = "the function" if set(stops) == {StopReason.FUNCTION_FAILED} else "the cause"
        raise TrainingStopped(f"no episode was usable ({reasons}){example}; fix {fault}, then resume the run")


def episodes(trajectories: Sequence[Trajectory], config: GuardsConfig) -> None:
    """Ends the run where no episode of an evaluation is usable, or more were lost than a guard allows that stops."""
    usable(trajectories)
    for verdict in Guards(config).verdicts(shares(trajectories), causes(trajectories)):
        if SIGNS[verdict.guard].lost and verdict.action == "stop":
            stop(verdict)


def engine(failure: EngineFailure) -> NoReturn:
    """An engine that breaks before the first question is asked."""
    if NOT_FINITE in str(failure):
        raise NotFinite(str(failure)) from failure
    raise TrainingStopped(f"{failure}; fix the cause, then resume the run") from failure


def _first(metrics: Mapping[str, float], names: Sequence[str]) -> float | None:
    """The value of the first of these metrics that is a number."""
    return next((metrics[name] for name in names if name in metrics and isfinite(metrics[name])), None)
