"""The figures of an evaluation: every mean with its interval, for each set, over the sets and over the questions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sleuth.evaluate.intervals import estimate, mean_of_means
from sleuth.evaluate.kinds import known_kind, place
from sleuth.evaluate.marks import Mark, by_set, values
from sleuth.records import Estimate

# In the order in which they are shown.
MEASURES = {
    "em": "EM",
    "f1": "F1",
    "cover_em": "Cover EM",
    "judge": "Judge",
    "format": "Format",
    "retrieval_hit": "Retrieval hit",
    "searches": "Searches",
    "tokens": "Tokens sampled",
    "tokens_all": "Tokens in all",
    "seconds": "Seconds",
}
# Of these more is neither better nor worse, and they have no bounds.
COUNTS = frozenset({"searches", "tokens", "tokens_all", "seconds"})
UNKNOWN = "not known"

Tree = dict[str, Any]


def results(marks: Sequence[Mark], **about: Any) -> Tree:
    """The figures as they are written: over all questions at the top, then the mean over the sets, then each set."""
    sets = by_set(marks)
    return {
        **about,
        **figures(marks),
        "mean": {name: asdict(mean) for name, mean in means_over_sets(sets).items()},
        "sets": {name: figures(part) for name, part in sets.items()},
        "kinds": {name: figures(part) for name, part in by_kind(marks).items()},
    }


def figures(marks: Sequence[Mark]) -> Tree:
    """Counts, and every mean that can be taken; questions lost to a failure are in none."""
    return {
        "questions": len(marks),
        "unusable": sum(mark.values is None for mark in marks),
        **{name: asdict(mean) for name, mean in means(marks).items()},
    }


def means(marks: Sequence[Mark]) -> dict[str, Estimate]:
    """The mean of each measure over the questions of which it was taken."""
    taken = {name: values(marks, name) for name in MEASURES}
    return {name: estimate(each, shares=name not in COUNTS) for name, each in taken.items() if each}


def means_over_sets(sets: Mapping[str, Sequence[Mark]]) -> dict[str, Estimate]:
    """The mean over the sets of the mean of each, where every set has one."""
    taken = {name: [values(part, name) for part in sets.values()] for name in MEASURES}
    return {name: mean_of_means(each, shares=name not in COUNTS) for name, each in taken.items() if all(each)}


def by_kind(marks: Sequence[Mark]) -> dict[str, list[Mark]]:
    """The marks of each kind of question, those without one last, so that they add up; none where no kind is known."""
    kinds: dict[str, list[Mark]] = {}
    for mark in marks:
        kinds.setdefault(known_kind(mark.question) or UNKNOWN, []).append(mark)
    if kinds.keys() <= {UNKNOWN}:
        return {}
    return dict(sorted(kinds.items(), key=lambda entry: (entry[0] == UNKNOWN, place(entry[0]))))
