"""Signs of trouble in the metrics of a run: where the limit of each lies, given the steps before.

A sign is a function of the recorded metrics alone, so that a resumed run sees what the run would have seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from sleuth.records import StopReason

FEW = 5  # steps before which a median or a running mean is not held against anything
REMEDY = "begin a new run with a lower train.learning_rate"
UNUSABLE = "episode/unusable"  # metric: share of the episodes lost to failures of any kind


def share_of(reason: StopReason) -> str:
    """The metric that holds the share of episodes that ended for a reason."""
    return f"stop/{reason.value}"


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure beside its limit."""

    value: float
    limit: float
    crossed: bool


# The steps before, this step's value, the threshold, the window.
Rule = Callable[[Sequence[float], float, float, int], Reading | None]


def spike(past: Sequence[float], value: float, times: float, window: int) -> Reading | None:
    """Above so many times the median of the last steps; a lasting change becomes that median by itself."""
    usual = median(past[-window:]) if len(past) >= FEW else 0.0
    return _above(value, times * usual) if usual else None


def waning(past: Sequence[float], value: float, share: float, window: int) -> Reading | None:  # noqa: ARG001  a Rule
    """Below a share of the first value."""
    return _below(value, share * past[0]) if past else None


def fall(past: Sequence[float], value: float, margin: float, window: int) -> Reading | None:
    """A running mean that is lower than the highest it has been, by more than the margin."""
    every = [*past, value]
    means = [fmean(every[max(0, end - window) : end]) for end in range(FEW, len(every) + 1)]
    return _below(means[-1], max(means) - margin) if means else None


def rise(past: Sequence[float], value: float, margin: float, window: int) -> Reading | None:  # noqa: ARG001  a Rule
    """Above the lowest so far by more than the margin: a model that cannot do a thing yet has not forgotten it."""
    return _above(value, min(past) + margin) if past else None


def level(past: Sequence[float], value: float, limit: float, window: int) -> Reading | None:  # noqa: ARG001  a Rule
    """Above the threshold itself."""
    return _above(value, limit)


@dataclass(frozen=True, slots=True)
class Sign:
    """Which metric is read, the first that is there, by which rule, and how a crossing is put into words."""

    metrics: tuple[str, ...]
    rule: Rule
    words: str
    remedy: str = REMEDY
    lost: bool = False  # it reads a share of episodes lost to failures, which evaluations are judged by too


def _lost(metric: str, to: str, remedy: str) -> Sign:
    words = "{value:.0%} of the episodes were lost to " + to + ", more than {limit:.0%}{cause}"
    return Sign((metric,), level, words, remedy, lost=True)


SIGNS: dict[str, Sign] = {
    "gradient_norm": Sign(
        ("policy/gradient_norm",),
        spike,
        "the gradient norm is {value:.3g}, above {limit:.3g} ({knob:g} times its median)",
    ),
    "entropy": Sign(
        ("policy/entropy",),
        waning,
        "the entropy is {value:.3g}, below {limit:.3g} ({knob:.0%} of its first value)",
    ),
    "likelihood": Sign(
        ("policy/likelihood_right",),
        fall,
        "the mean logprob of the best answers is {value:.3g}, below {limit:.3g} ({knob:g} under its highest)",
    ),
    "malformed": Sign(
        ("episode/malformed",),
        rise,
        "{value:.0%} of the episodes are malformed, above {limit:.0%} ({knob:.0%} over the lowest)",
    ),
    "answerless": Sign(
        ("episode/answerless",),
        rise,
        "{value:.0%} of the episodes have no answer, above {limit:.0%} ({knob:.0%} over the lowest)",
    ),
    "search_failures": _lost(
        share_of(StopReason.SEARCH_UNAVAILABLE), "failed searches", "mend the search engine and resume the run"
    ),
    "engine_failures": _lost(
        share_of(StopReason.ENGINE_FAILED), "engine failures", "fix the cause, then resume the run"
    ),
    "function_failures": _lost(
        share_of(StopReason.FUNCTION_FAILED),
        "a function of your own",
        "fix the function, then resume the run, or raise guards.function_failures",
    ),
    "unusable": _lost(UNUSABLE, "failures of any kind", "fix the cause, then resume the run"),
    "parity": Sign(
        ("correction/k3", "parity/k3"),
        level,
        "the logprobs of engine and trainer are {value:.3g} apart (k3), more than {limit:.3g}",
        "look for what changed between them, or set algorithm.correction",
    ),
}


def _above(value: float, limit: float) -> Reading:
    return Reading(value, limit, value > limit)


def _below(value: float, limit: float) -> Reading:
    return Reading(value, limit, value < limit)
