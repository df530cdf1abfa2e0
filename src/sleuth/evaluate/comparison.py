"""Paired comparison of two evaluations of the same questions."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sleuth.errors import InputError
from sleuth.evaluate.benchmarks import group_by
from sleuth.evaluate.results import COUNTS, MEASURES, Evaluation, QuestionResult, question_fields, read_results
from sleuth.evaluate.statistics import estimate, mean_of_means, paired_difference, paired_mean_of_means
from sleuth.page.document import markdown_table
from sleuth.records import Estimate, Question


@dataclass(frozen=True, slots=True)
class Pair:
    first: QuestionResult
    second: QuestionResult

    @property
    def question(self) -> Question:
        return self.first.question

    def values(self, measure: str) -> tuple[float, float] | None:
        """Return the values of a measure in both evaluations; None unless both have it."""
        first, second = self.first.values, self.second.values
        if first is None or second is None or measure not in first or measure not in second:
            return None
        return first[measure], second[measure]


@dataclass(frozen=True, slots=True)
class Difference:
    """Estimates of a measure in both evaluations, and the gain `second - first`, over the same questions."""

    first: Estimate
    second: Estimate
    gain: Estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """Questions asked in both evaluations; `left_out` counts questions asked in only one of them."""

    pairs: tuple[Pair, ...]
    left_out: int = 0

    @property
    def sets(self) -> dict[str, list[Pair]]:
        return group_by(self.pairs, lambda pair: pair.question.data_source)

    @property
    def unusable(self) -> int:
        """Pairs excluded from all figures because an episode failed."""
        return sum(not (pair.first.usable and pair.second.usable) for pair in self.pairs)

    def by_set(self, measure: str) -> dict[str, Difference]:
        found = {name: _difference(pairs, measure) for name, pairs in self.sets.items()}
        return {name: difference for name, difference in found.items() if difference is not None}

    def mean(self, measure: str) -> Difference | None:
        """Difference of the mean over data sets; None if a data set lacks the measure."""
        sets = [_values(pairs, measure) for pairs in self.sets.values()]
        if not sets or not all(first for first, _ in sets):
            return None
        first, second = [each[0] for each in sets], [each[1] for each in sets]
        proportion = measure not in COUNTS
        return Difference(
            mean_of_means(first, proportion=proportion),
            mean_of_means(second, proportion=proportion),
            paired_mean_of_means(first, second, proportion=proportion),
        )

    def overall(self, measure: str) -> Difference | None:
        """Difference over all questions; None if no pair has the measure."""
        return _difference(self.pairs, measure)

    def gain(self, measure: str) -> Estimate:
        """Return the paired difference; raises ValueError if no pair has the measure."""
        return paired_difference(*_values(self.pairs, measure), proportion=measure not in COUNTS)

    def changed(self, measure: str) -> tuple[list[Pair], list[Pair]]:
        """Return the pairs whose value is higher in the second evaluation, and the pairs whose value is lower."""
        known = [(pair, both) for pair in self.pairs if (both := pair.values(measure)) is not None]
        return [pair for pair, (a, b) in known if b > a], [pair for pair, (a, b) in known if b < a]


def compare(first: Sequence[QuestionResult], second: Sequence[QuestionResult], *, common: bool = False) -> Comparison:
    """Pair the questions of two evaluations; with `common`, ignore questions asked in only one of them."""
    if [result.question for result in first] == [result.question for result in second]:
        return Comparison(tuple(map(Pair, first, second)))
    others = {result.key: result for result in second}
    keys = {result.key for result in first}
    left_out = len(keys ^ others.keys())
    if left_out and not common:
        raise InputError(
            f"the evaluations asked different questions: {len(keys - others.keys()):,} only in the first, "
            f"{len(others.keys() - keys):,} only in the second; evaluate both on the same questions, or compare the "
            "shared ones with --common"
        )
    pairs = tuple(Pair(result, others[result.key]) for result in first if result.key in others)
    if not pairs:
        raise InputError("the evaluations have no question in common; evaluate both on the same questions")
    for pair in pairs:
        one, other = pair.first.question, pair.second.question
        if (one.question, one.golden_answers) != (other.question, other.golden_answers):
            raise InputError(
                f"question {one.id!r} of {one.data_source!r} has a different text or different answers in the second "
                "evaluation; evaluate both on the same files"
            )
    return Comparison(pairs, left_out)


def compare_by_kind(before: Evaluation, after: Evaluation) -> dict[str, Comparison]:
    """Compare each kind of question that has at least one question usable in both evaluations."""
    later = after.by_kind()
    found = {
        kind: compare(part.results, later[kind].results) for kind, part in before.by_kind().items() if kind in later
    }
    return {kind: comparison for kind, comparison in found.items() if comparison.unusable < len(comparison.pairs)}


def compare_folders(first: Path, second: Path, common: bool) -> dict[str, Any]:
    comparison = compare(read_results(first), read_results(second), common=common)
    figures = as_json(comparison, "em")
    del figures["changed"]  # the viewer derives it from the pairs, for any measure

    def side(result: QuestionResult) -> dict[str, Any]:
        return {"answer": result.answer, "values": result.values, "stop": result.stop}

    pairs = [
        {**question_fields(pair.question), "first": side(pair.first), "second": side(pair.second)}
        for pair in comparison.pairs
    ]
    return {**figures, "pairs": pairs}


def as_json(comparison: Comparison, measure: str) -> dict[str, Any]:
    sets: dict[str, Any] = {name: {"questions": len(pairs)} for name, pairs in comparison.sets.items()}
    for name in MEASURES:
        for data_set, difference in comparison.by_set(name).items():
            sets[data_set][name] = asdict(difference)
    changed = {
        side: [
            {**question_fields(pair.question), "first": pair.first.answer, "second": pair.second.answer}
            for pair in pairs
        ]
        for side, pairs in zip(_sides(measure), comparison.changed(measure), strict=True)
    }
    return {
        "questions": len(comparison.pairs),
        "left_out": comparison.left_out,
        "unusable": comparison.unusable,
        "mean": {name: asdict(found) for name in MEASURES if (found := comparison.mean(name)) is not None},
        "all": {name: asdict(found) for name in MEASURES if (found := comparison.overall(name)) is not None},
        "sets": sets,
        "changed": {"measure": measure, **changed},
    }


def markdown(comparison: Comparison, names: tuple[str, str], measure: str, show: int) -> str:
    """Format a report: one measure by data set, the means of all measures, and up to `show` changes per side."""
    first, second = names
    lines = [f"# {MEASURES[measure]}: {second} against {first}", ""]
    lines += markdown_table(("Set", "Questions", "A", "B", "B - A"), _rows_by_set(comparison, measure))
    means = ((name, comparison.mean(name)) for name in MEASURES)
    rows = [(MEASURES[name], *_cells(found, name)) for name, found in means if found is not None]
    lines += ["", *markdown_table(("Mean over the sets", "A", "B", "B - A"), rows)]
    lines += [
        "",
        f"A is {first}, B is {second}. Brackets hold 95% intervals. Differences are paired by question and bold where "
        "the interval excludes zero, except seconds, which depend on the load of the machine.",
    ]
    if comparison.left_out:
        lines.append(f"{comparison.left_out:,} questions were asked in only one evaluation and are left out.")
    if comparison.unusable:
        lines.append(f"{comparison.unusable:,} questions failed in one of the two evaluations and are left out.")
    preposition = "in" if measure in COUNTS else "by"
    for side, pairs in zip(_sides(measure), comparison.changed(measure), strict=True):
        lines += ["", f"## {side.capitalize()} {preposition} B: {len(pairs):,}", "", *map(_changed_line, pairs[:show])]
    return "\n".join(lines) + "\n"


def _difference(pairs: Iterable[Pair], measure: str) -> Difference | None:
    first, second = _values(pairs, measure)
    if not first:
        return None
    proportion = measure not in COUNTS
    gain = paired_difference(first, second, proportion=proportion)
    return Difference(estimate(first, proportion=proportion), estimate(second, proportion=proportion), gain)


def _values(pairs: Iterable[Pair], measure: str) -> tuple[list[float], list[float]]:
    both = [values for pair in pairs if (values := pair.values(measure)) is not None]
    return [first for first, _ in both], [second for _, second in both]


def _sides(measure: str) -> tuple[str, str]:
    """Headings for higher and lower values: won and lost, or neutral words for counts."""
    return ("higher", "lower") if measure in COUNTS else ("won", "lost")


def _rows_by_set(comparison: Comparison, measure: str) -> list[tuple[str, ...]]:
    sizes = {name: len(pairs) for name, pairs in comparison.sets.items()}
    labelled: list[tuple[str, int, Difference | None]] = [
        (name, sizes[name], found) for name, found in comparison.by_set(measure).items()
    ]
    if len(sizes) > 1:
        labelled.append(("mean over the sets", len(comparison.pairs), comparison.mean(measure)))
    labelled.append(("all questions", len(comparison.pairs), comparison.overall(measure)))
    return [(name, f"{size:,}", *_cells(found, measure)) for name, size, found in labelled if found is not None]


def _cells(difference: Difference, measure: str) -> tuple[str, str, str]:
    gain = difference.gain
    text = f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
    significant = measure != "seconds" and (gain.low > 0 or gain.high < 0)
    return f"{difference.first.value:.3f}", f"{difference.second.value:.3f}", f"**{text}**" if significant else text


def _changed_line(pair: Pair) -> str:
    question, expected = pair.question, " / ".join(pair.question.golden_answers[:3])
    first, second = ("(no answer)" if each.answer is None else each.answer for each in (pair.first, pair.second))
    line = f"- {question.question} ({question.data_source}; expected: {expected}) A: {first} B: {second}"
    return " ".join(line.split())
