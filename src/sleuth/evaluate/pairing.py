"""Two evaluations of the same questions: what differs on the mean, and which questions changed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sleuth.errors import InputError
from sleuth.evaluate.differences import paired_difference, paired_mean_of_means
from sleuth.evaluate.intervals import estimate, mean_of_means
from sleuth.evaluate.marks import Mark
from sleuth.evaluate.results import COUNTS, MEASURES
from sleuth.records import Estimate


@dataclass(frozen=True, slots=True)
class Pair:
    """A question with its mark in either evaluation."""

    first: Mark
    second: Mark

    def values(self, measure: str) -> tuple[float, float] | None:
        """What was measured both times; None where it was not."""
        first, second = self.first.values, self.second.values
        if first is None or second is None or measure not in first or measure not in second:
            return None
        return first[measure], second[measure]


@dataclass(frozen=True, slots=True)
class Difference:
    """A measure in either evaluation, and the difference, second minus first, over the same questions."""

    first: Estimate
    second: Estimate
    gain: Estimate


@dataclass(frozen=True, slots=True)
class Pairing:
    """The questions of two evaluations that are the same; `left_out` stand in one only."""

    pairs: tuple[Pair, ...]
    left_out: int

    @property
    def sets(self) -> dict[str, list[Pair]]:
        found: dict[str, list[Pair]] = {}
        for pair in self.pairs:
            found.setdefault(pair.first.question.data_source, []).append(pair)
        return found

    @property
    def lost(self) -> int:
        """Pairs of which one was lost to a failure: they are in no figure."""
        return sum(pair.first.values is None or pair.second.values is None for pair in self.pairs)

    def by_set(self, measure: str) -> dict[str, Difference]:
        """The difference in each set that has the measure both times."""
        taken = {name: _taken(pairs, measure) for name, pairs in self.sets.items()}
        return {name: _difference(first, second, measure) for name, (first, second) in taken.items() if first}

    def mean(self, measure: str) -> Difference | None:
        """The difference of the mean over the sets; None where a set has none."""
        taken = [_taken(pairs, measure) for pairs in self.sets.values()]
        if not taken or not all(first for first, _ in taken):
            return None
        first, second = [each[0] for each in taken], [each[1] for each in taken]
        shares = measure not in COUNTS
        gain = paired_mean_of_means(first, second, shares=shares)
        return Difference(mean_of_means(first, shares=shares), mean_of_means(second, shares=shares), gain)

    def all(self, measure: str) -> Difference | None:
        """The difference over all questions."""
        first, second = _taken(self.pairs, measure)
        return _difference(first, second, measure) if first else None

    def changed(self, measure: str) -> tuple[list[Pair], list[Pair]]:
        """The questions of which the second evaluation has more, and those of which it has less."""
        known = [(pair, both) for pair in self.pairs if (both := pair.values(measure)) is not None]
        return [pair for pair, (a, b) in known if b > a], [pair for pair, (a, b) in known if b < a]


def paired(first: Sequence[Mark], second: Sequence[Mark], *, common: bool = False) -> Pairing:
    """The questions of both, in the order of the first; others are an error, unless only what is `common` is wanted."""
    there = {mark.key: mark for mark in second}
    keys = {mark.key for mark in first}
    left_out = len(keys ^ there.keys())
    if left_out and not common:
        raise InputError(
            f"the evaluations asked different questions: {len(keys - there.keys()):,} only in the first, "
            f"{len(there.keys() - keys):,} only in the second; evaluate both on the same, or compare what is common "
            "with --common"
        )
    pairs = tuple(Pair(mark, there[mark.key]) for mark in first if mark.key in there)
    if not pairs:
        raise InputError("the evaluations have no question in common; evaluate both on the same questions")
    for pair in pairs:
        one, other = pair.first.question, pair.second.question
        if (one.question, one.golden_answers) != (other.question, other.golden_answers):
            raise InputError(
                f"the question {one.id!r} of {one.data_source!r} has another text or other answers in the second "
                "evaluation; evaluate both on the same files"
            )
    return Pairing(pairs, left_out)


def as_json(pairing: Pairing, measure: str) -> dict[str, Any]:
    """All of it for programs."""
    changed = dict(zip(_sides(measure), map(_rows, pairing.changed(measure)), strict=True))
    return {
        "questions": len(pairing.pairs),
        "left_out": pairing.left_out,
        "unusable": pairing.lost,
        "mean": {name: asdict(found) for name in MEASURES if (found := pairing.mean(name)) is not None},
        "all": {name: asdict(found) for name in MEASURES if (found := pairing.all(name)) is not None},
        "sets": _sets(pairing),
        "changed": {"measure": measure, **changed},
    }


def markdown(pairing: Pairing, names: tuple[str, str], measure: str, show: int) -> str:
    """All of it for people: a table of one measure by set, the other measures on the mean, and what changed."""
    first, second = names
    lines = [f"# {MEASURES[measure]}: {second} against {first}", ""]
    lines += _table(("Set", "Questions", "A", "B", "B - A"), _by_set(pairing, measure))
    lines += ["", *_table(("Mean over the sets", "A", "B", "B - A"), _by_measure(pairing))]
    lines += ["", f"A is {first}, B is {second}. Brackets hold 95% intervals; differences are paired, question by "]
    lines[-1] += (
        "question, and in bold where their interval excludes zero. Seconds never are: they depend on what else ran."
    )
    if pairing.left_out:
        lines.append(f"Compared is what is common: {pairing.left_out:,} questions stand in one evaluation only.")
    if pairing.lost:
        lines.append(f"{pairing.lost:,} questions were lost to a failure in one of the two and are in no figure.")
    by = "in" if measure in COUNTS else "by"
    for side, pairs in zip(_sides(measure), pairing.changed(measure), strict=True):
        lines += ["", f"## {side.capitalize()} {by} B: {len(pairs):,}", "", *(_changed(pair) for pair in pairs[:show])]
    return "\n".join(lines) + "\n"


def _sides(measure: str) -> tuple[str, str]:
    """What more and less of a measure are called: more tokens are no victory."""
    return ("higher", "lower") if measure in COUNTS else ("won", "lost")


def _difference(first: Sequence[float], second: Sequence[float], measure: str) -> Difference:
    shares = measure not in COUNTS
    gain = paired_difference(first, second, shares=shares)
    return Difference(estimate(first, shares=shares), estimate(second, shares=shares), gain)


def _taken(pairs: Sequence[Pair], measure: str) -> tuple[list[float], list[float]]:
    both = [values for pair in pairs if (values := pair.values(measure)) is not None]
    return [first for first, _ in both], [second for _, second in both]


def _sets(pairing: Pairing) -> dict[str, Any]:
    sets: dict[str, Any] = {name: {"questions": len(pairs)} for name, pairs in pairing.sets.items()}
    for measure in MEASURES:
        for name, found in pairing.by_set(measure).items():
            sets[name][measure] = asdict(found)
    return sets


def _rows(pairs: Sequence[Pair]) -> list[Mapping[str, Any]]:
    return [
        {
            "id": pair.first.question.id,
            "data_source": pair.first.question.data_source,
            "question": pair.first.question.question,
            "golden_answers": list(pair.first.question.golden_answers),
            "first": pair.first.answer,
            "second": pair.second.answer,
        }
        for pair in pairs
    ]


def _by_set(pairing: Pairing, measure: str) -> list[tuple[str, ...]]:
    counts = {name: len(pairs) for name, pairs in pairing.sets.items()}
    rows: list[tuple[str, ...]] = [
        (name, f"{counts[name]:,}", *_cells(found, measure)) for name, found in pairing.by_set(measure).items()
    ]
    if len(counts) > 1 and (mean := pairing.mean(measure)) is not None:
        rows.append(("mean over the sets", f"{len(pairing.pairs):,}", *_cells(mean, measure)))
    if (whole := pairing.all(measure)) is not None:
        rows.append(("all questions", f"{len(pairing.pairs):,}", *_cells(whole, measure)))
    return rows


def _by_measure(pairing: Pairing) -> list[tuple[str, ...]]:
    found = ((name, pairing.mean(name)) for name in MEASURES)
    return [(MEASURES[name], *_cells(difference, name)) for name, difference in found if difference is not None]


def _cells(difference: Difference, measure: str) -> tuple[str, str, str]:
    """Seconds are never marked: they depend on what else ran."""
    gain = difference.gain
    shown = f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
    certain = measure != "seconds" and (gain.low > 0 or gain.high < 0)
    return f"{difference.first.value:.3f}", f"{difference.second.value:.3f}", f"**{shown}**" if certain else shown


def _changed(pair: Pair) -> str:
    question = pair.first.question
    golds = " / ".join(question.golden_answers[:3])
    said = [mark.answer if mark.answer is not None else "(no answer)" for mark in (pair.first, pair.second)]
    line = f"- {question.question} ({question.data_source}; right: {golds}) A: {said[0]} B: {said[1]}"
    return " ".join(line.split())


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    rule = ("---", *["---:"] * (len(header) - 1))
    # A set may be called anything; a bar would end its cell.
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (header, rule, *rows))
    return [f"| {' | '.join(row)} |" for row in cells]
