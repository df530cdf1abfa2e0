"""Guards: compare each step's metrics with limits and with earlier steps, and warn, skip, roll back or stop.

Guards depend only on the recorded metrics and the number of rollbacks, so a resumed run gets the same verdicts as one
that was never interrupted. A few failures stop a run regardless of the settings: those raise TrainingStopped here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from statistics import fmean, median
from typing import Literal, NoReturn, cast

from sleuth.config.guards import GuardsConfig
from sleuth.engines.base import NOT_FINITE
from sleuth.errors import EngineFailure, TrainingStopped
from sleuth.records import StopReason, Trajectory
from sleuth.train.metrics import UNUSABLE, role_metric, stop_metric, stop_metrics

Action = Literal["warn", "skip", "rollback", "stop"]

MIN_HISTORY = 5  # steps needed before a median or a running mean is meaningful
NON_FINITE = "non_finite"
LOWER_RATE = "start a new run with a lower train.learning_rate"
RESUME = "fix the cause, then resume the run"
# In order of severity: if there are several verdicts, the most severe one is carried out.
CONSEQUENCES: dict[Action, str] = {
    "warn": "training continues",
    "skip": "this step's update is not applied",
    "rollback": "rolling back to the last good checkpoint with a lower learning rate",
    "stop": "the run stops",
}


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that crossed a limit, with that limit."""

    value: float
    limit: float


# Takes earlier values, this step's value, the threshold and the window; returns None if no limit is crossed.
Rule = Callable[[Sequence[float], float, float, int], Crossing | None]


def above_median(past: Sequence[float], value: float, factor: float, window: int) -> Crossing | None:
    """Detect a value above `factor` times the median of the last `window` steps."""
    limit = factor * median(past[-window:]) if len(past) >= MIN_HISTORY else 0.0
    return Crossing(value, limit) if limit and value > limit else None


def below_first(past: Sequence[float], value: float, fraction: float, window: int) -> Crossing | None:  # noqa: ARG001
    """Detect a value below a fraction of the first value."""
    return Crossing(value, fraction * past[0]) if past and value < fraction * past[0] else None


def below_best_mean(past: Sequence[float], value: float, margin: float, window: int) -> Crossing | None:
    """Detect a running mean more than `margin` below its maximum so far."""
    every = [*past, value]
    means = [fmean(every[max(0, end - window) : end]) for end in range(MIN_HISTORY, len(every) + 1)]
    return Crossing(means[-1], max(means) - margin) if means and means[-1] < max(means) - margin else None


def above_lowest(past: Sequence[float], value: float, margin: float, window: int) -> Crossing | None:  # noqa: ARG001
    """Detect a value more than `margin` above the lowest value so far."""
    return Crossing(value, min(past) + margin) if past and value > min(past) + margin else None


def above_limit(past: Sequence[float], value: float, limit: float, window: int) -> Crossing | None:  # noqa: ARG001
    """Detect a value above a fixed limit."""
    return Crossing(value, limit) if value > limit else None


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard's metrics (it reads the first one present), rule and message.

    `lost` marks guards on lost episodes, which apply to evaluations as well.
    """

    metrics: tuple[str, ...]
    rule: Rule
    message: str
    remedy: str = LOWER_RATE
    lost: bool = False


def _lost(metric: str, cause: str, remedy: str) -> Guard:
    message = "{value:.0%} of the episodes were lost to " + cause + ", more than {limit:.0%}{example}"
    return Guard((metric,), above_limit, message, remedy, lost=True)


GUARDS: dict[str, Guard] = {
    "gradient_norm": Guard(
        ("policy/gradient_norm",),
        above_median,
        "the gradient norm is {value:.3g}, above {limit:.3g} ({setting:g} times its median)",
    ),
    "entropy": Guard(
        ("policy/entropy",),
        below_first,
        "the entropy is {value:.3g}, below {limit:.3g} ({setting:.0%} of its first value)",
    ),
    "likelihood": Guard(
        ("policy/likelihood_right",),
        below_best_mean,
        "the mean logprob of correct answers is {value:.3g}, below {limit:.3g} ({setting:g} under its maximum)",
    ),
    "malformed": Guard(
        ("episode/malformed",),
        above_lowest,
        "{value:.0%} of the episodes are malformed, above {limit:.0%} ({setting:.0%} over the lowest)",
    ),
    "answerless": Guard(
        ("episode/answerless",),
        above_lowest,
        "{value:.0%} of the episodes have no answer, above {limit:.0%} ({setting:.0%} over the lowest)",
    ),
    "search_failures": _lost(
        stop_metric(StopReason.SEARCH_UNAVAILABLE), "failed searches", "repair the search engine, then resume the run"
    ),
    "engine_failures": _lost(stop_metric(StopReason.ENGINE_FAILED), "engine failures", RESUME),
    "function_failures": _lost(
        stop_metric(StopReason.FUNCTION_FAILED),
        "an imported function",
        "fix the function, then resume the run, or raise guards.function_failures",
    ),
    "unusable": _lost(UNUSABLE, "failures of any kind", RESUME),
    "parity": Guard(
        ("correction/k3", "parity/k3"),
        above_limit,
        "the logprobs of engine and trainer differ by {value:.3g} (k3), more than {limit:.3g}",
        "find out what changed between them, or set algorithm.correction",
    ),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A limit that a step crossed, and the action to take."""

    guard: str
    action: Action
    value: float
    limit: float
    sentence: str

    @property
    def applies_update(self) -> bool:
        return self.action == "warn"

    def line(self, step: int) -> str:
        return f"step {step}: {self.sentence}; {CONSEQUENCES[self.action]}"

    def event(self) -> dict[str, str | float | None]:
        """Return the verdict as a row of events.jsonl; non-finite values become null."""
        return {
            "guard": self.guard,
            "action": self.action,
            "value": self.value if isfinite(self.value) else None,
            "limit": self.limit if isfinite(self.limit) else None,
            "sentence": self.sentence,
        }


def _severity(verdict: Verdict) -> int:
    return list(CONSEQUENCES).index(verdict.action)


def most_severe(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the most severe verdict, the first one on a tie; None if there are no verdicts."""
    return max(verdicts, key=_severity, default=None)


def resolve(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Reduce to one verdict per guard and at most one rollback; further rollbacks become warnings.

    A resumed run counts its earlier rollbacks from events.jsonl, so each must be recorded only once.
    """
    by_guard = {verdict.guard: verdict for verdict in sorted(verdicts, key=_severity)}
    carried_out = most_severe(by_guard.values())
    return [
        replace(each, action="warn") if each.action == "rollback" and each is not carried_out else each
        for each in by_guard.values()
    ]


class NotFinite(TrainingStopped):
    """Raised if the engine finds non-finite weights or logits; within a step, a guard chooses the action."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"{sentence}; check model.policy and model.dtype, or {LOWER_RATE}")
        self.sentence = sentence


class Guards:
    """Checks steps against the metrics of earlier steps."""

    def __init__(self, config: GuardsConfig, history: Iterable[Mapping[str, float]] = (), rollbacks: int = 0) -> None:
        self.config = config
        self.rollbacks = rollbacks
        self._past: dict[str, list[float]] = {name: [] for name in GUARDS}
        self._seen: set[str] = set()  # names of all recorded metrics
        for metrics in history:
            self.record(metrics)

    @property
    def rate_scale(self) -> float:
        """Learning-rate multiplier after the rollbacks so far."""
        return float(self.config.rollback_rate**self.rollbacks)

    def check_update(self, norm: float, loss: float = 0.0) -> Verdict | None:
        """Check an update before it is applied."""
        for name, value in (("loss", loss), ("gradient norm", norm)):
            if not isfinite(value):
                return self._verdict(NON_FINITE, value, nan, f"the {name} is {value}")
        return self._check("gradient_norm", norm, "")

    def update_gate(self, verdicts: list[Verdict]) -> Callable[[float], bool]:
        """`check_update` as a predicate for the learner; verdicts are appended to the list."""

        def allows(norm: float) -> bool:
            verdict = self.check_update(norm)
            verdicts.extend([verdict] if verdict else [])
            return verdict is None or verdict.applies_update

        return allows

    def check(self, metrics: Mapping[str, float], examples: Mapping[str, str] | None = None) -> list[Verdict]:
        """Check the metrics, except the gradient norm, which `check_update` covers; does not add them to the history.

        `examples` maps each lost-episode metric to an example failure.
        """
        broken = {name: value for name, value in metrics.items() if not isfinite(value)}
        verdicts = [self._verdict(NON_FINITE, value, nan, f"{name} is {value}") for name, value in broken.items()][:1]
        for name, guard in GUARDS.items():
            value = _first(metrics, guard.metrics)
            if name != "gradient_norm" and value is not None:
                verdict = self._check(name, value, (examples or {}).get(guard.metrics[0], ""))
                verdicts += [verdict] if verdict else []
        return verdicts

    def check_roles(self, trajectories: Sequence[Trajectory], roles: Sequence[str]) -> list[Verdict]:
        """Warn about trained roles that no segment has; raises TrainingStopped if no segment of the run had any."""
        used = {segment.role for each in trajectories for segment in each.segments if segment.logprobs}
        if not (missing := [role for role in roles if role not in used]):
            return []
        others = ", ".join(sorted(map(repr, used))) or "none"
        sentence = f"train.roles has {', '.join(map(repr, missing))}, but the agent sampled with the roles {others}"
        if used.isdisjoint(roles) and not any(role_metric(role) in self._seen for role in roles):
            raise TrainingStopped(
                f"{sentence}: nothing can be trained; correct train.roles, or the model that the agent calls "
                f"(policy/{missing[0]})"
            )
        return [Verdict("roles", "warn", float(len(missing)), 0.0, sentence)]

    def non_finite(self, sentence: str) -> Verdict:
        """Return the verdict for non-finite weights: stop or roll back."""
        action: Action = "stop" if self.config.non_finite == "stop" else "rollback"
        return self._verdict(NON_FINITE, nan, nan, sentence, action)

    def record(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a finished step to the history."""
        self._seen |= metrics.keys()
        for name, past in self._past.items():
            value = _first(metrics, GUARDS[name].metrics)
            past.extend([] if value is None else [value])

    def _check(self, name: str, value: float, example: str) -> Verdict | None:
        guard, threshold = GUARDS[name], getattr(self.config, name)
        found = guard.rule(self._past[name], value, threshold, self.config.window)
        if found is None or self.config.actions[name] == "off":
            return None
        sentence = guard.message.format(value=found.value, limit=found.limit, setting=threshold, example=example)
        return self._verdict(name, found.value, found.limit, sentence)

    def _verdict(self, name: str, value: float, limit: float, sentence: str, action: Action | None = None) -> Verdict:
        """Create a verdict, by default with the configured action; a rollback beyond the limit becomes a stop."""
        action = action or cast(Action, self.config.actions[name])
        if action == "rollback" and self.rollbacks >= self.config.rollbacks:
            sentence += f", and guards.rollbacks = {self.config.rollbacks} allows no further rollback"
            action = "stop"
        return Verdict(name, action, value, limit, sentence)


def _first(metrics: Mapping[str, float], names: Sequence[str]) -> float | None:
    """Return the first finite value among the named metrics."""
    return next((metrics[name] for name in names if name in metrics and isfinite(metrics[name])), None)


def last_good(saved: Iterable[int], step: int, staleness: int = 0) -> int:
    """Return the newest good checkpoint when a problem is detected in `step`; 0 is the initial policy.

    Rollouts of a step use the weights of the previous step, or of `staleness` steps before it. A problem in rollouts
    was caused by an earlier update, so a checkpoint is known to be good only after a step was sampled from it.
    """
    return max((each for each in saved if each <= step - 2 - staleness), default=0)


def stop(verdict: Verdict) -> NoReturn:
    """End the run because of a verdict."""
    remedy = GUARDS[verdict.guard].remedy if verdict.guard in GUARDS else f"fix the cause, or {LOWER_RATE}"
    raise TrainingStopped(f"{verdict.sentence}; {remedy}")


def failure_examples(trajectories: Iterable[Trajectory]) -> dict[str, str]:
    """Return an example failure for each lost-episode metric, to append to a sentence."""
    examples: dict[str, str] = {}
    for each in trajectories:
        if each.failure and not each.stop.usable:
            for metric in (stop_metric(each.stop), UNUSABLE):
                examples.setdefault(metric, f", for example: {each.failure}")
    return examples


def require_usable(trajectories: Sequence[Trajectory]) -> None:
    """Raise NotFinite if the engine found non-finite weights; raise TrainingStopped if no episode is usable."""
    broken = [each.failure for each in trajectories if each.failure and NOT_FINITE in each.failure]
    if broken:
        raise NotFinite(f"{len(broken)} of {len(trajectories)} episodes were lost, for example: {broken[0]}")
    stops = Counter(trajectory.stop for trajectory in trajectories)
    if not any(reason.usable for reason in stops):
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in stops.items())
        example = failure_examples(trajectories).get(UNUSABLE, "")
        fault = "the function" if set(stops) == {StopReason.FUNCTION_FAILED} else "the cause"
        raise TrainingStopped(f"no episode was usable ({reasons}){example}; fix {fault}, then resume the run")


def check_evaluation(trajectories: Sequence[Trajectory], config: GuardsConfig) -> None:
    """Stop the run if an evaluation has no usable episode, or loses more episodes than a stopping guard allows."""
    require_usable(trajectories)
    for verdict in Guards(config).check(stop_metrics(trajectories), failure_examples(trajectories)):
        if GUARDS[verdict.guard].lost and verdict.action == "stop":
            stop(verdict)


def stop_for_engine(failure: EngineFailure) -> NoReturn:
    """End the run because the engine failed before the first question."""
    if NOT_FINITE in str(failure):
        raise NotFinite(str(failure)) from failure
    raise TrainingStopped(f"{failure}; {RESUME}") from failure
