"""Abstaining: how often an agent answers "I don't know", and whether it does so when there is no answer."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from sleuth.evaluate.statistics import estimate
from sleuth.records import Estimate, Question
from sleuth.reward.answers import abstains


class Result(Protocol):
    """A question with its answer and its measures, None if the episode is unusable."""

    @property
    def question(self) -> Question: ...
    @property
    def answer(self) -> str | None: ...
    @property
    def values(self) -> Mapping[str, float] | None: ...


def is_right(result: Result) -> bool | None:
    """Whether the answer is an exact match, or an abstention if there is none; None for an unusable episode."""
    if result.values is None:
        return None
    if result.question.answerable is False:
        return abstains(result.answer, result.question.golden_answers)
    return bool(result.values["em"])


def abstention_figures(results: Sequence[Result]) -> dict[str, Estimate]:
    """Compute the figures of abstaining over the usable questions; empty if nothing abstains or is unanswerable.

    An answer to an unanswerable question is wrong. A figure without questions to compute it from is missing.
    """
    usable = [each for each in results if each.values is not None]
    silent = [abstains(each.answer, each.question.golden_answers) for each in usable]
    hopeless = [each.question.answerable is False for each in usable]
    if not any(silent) and not any(hopeless):
        return {}
    answered = [each.answer is not None and not quiet for each, quiet in zip(usable, silent, strict=True)]
    matches = [
        float(not lost and each.values is not None and each.values["em"])
        for each, lost in zip(usable, hopeless, strict=True)
    ]
    kept = list(zip(silent, hopeless, answered, matches, strict=True))
    figures: dict[str, list[float]] = {
        "rate": [float(quiet) for quiet, *_ in kept],
        "coverage": [float(given) for _, _, given, _ in kept],
        "precision": [correct for _, _, given, correct in kept if given],
        "em_answerable": [correct for _, lost, _, correct in kept if not lost],
        "recall": [float(quiet) for quiet, lost, *_ in kept if lost],
        "abstention_precision": [float(lost) for quiet, lost, *_ in kept if quiet],
        "right": [float(right) for each in usable if (right := is_right(each)) is not None],
    }
    return {name: estimate(values) for name, values in figures.items() if values}
