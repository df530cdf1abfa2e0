"""Two evaluations of the same questions, compared question by question."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sleuth.evaluate.differences import paired_difference
from sleuth.evaluate.results import COUNTS
from sleuth.evaluate.suite import Evaluation
from sleuth.records import Estimate, Score


def gain(before: Evaluation, after: Evaluation, part: str = "em") -> Estimate:
    """The mean change of one part of the score over the questions that were usable both times."""
    pairs = _pairs(before, after)
    first, second = [one.parts[part] for one, _ in pairs], [other.parts[part] for _, other in pairs]
    return paired_difference(first, second, shares=part not in COUNTS)


def em_by_hops(before: Evaluation, after: Evaluation) -> dict[str, dict[str, Any]]:
    """Exact match before, after and gained for each kind, and how many questions it has, ready for JSON."""
    return {
        label: {
            "before": asdict(first.em),
            "after": asdict(second.em),
            "gain": asdict(gain(first, second)),
            "questions": len(first.asked),
        }
        for label, first, second in _kinds(before, after)
    }


def searches_by_hops(before: Evaluation, after: Evaluation) -> dict[str, dict[str, float]]:
    """Mean searches a question before and after for each kind of question."""
    return {
        label: {"before": first.searches.value, "after": second.searches.value}
        for label, first, second in _kinds(before, after)
    }


def _kinds(before: Evaluation, after: Evaluation) -> Iterator[tuple[str, Evaluation, Evaluation]]:
    """The kinds that have a question usable both times; of the others nothing can be said."""
    later = after.by_hops()
    for label, first in before.by_hops().items():
        if label in later and _pairs(first, later[label]):
            yield label, first, later[label]


def _pairs(before: Evaluation, after: Evaluation) -> list[tuple[Score, Score]]:
    """The scores of each question usable both times."""
    if [each.question for each in before.asked] != [each.question for each in after.asked]:
        raise ValueError("the two evaluations asked different questions; compare those of one list, in its order")
    scores = ((first.score, second.score) for first, second in zip(before.asked, after.asked, strict=True))
    return [(first, second) for first, second in scores if first is not None and second is not None]
