"""The figures of an evaluation: every mean with its interval, for each set, over the sets and over the questions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sleuth.evaluate.intervals import estimate, joined
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
    found = {name: means(part) for name, part in sets.items()}
    # Of one set alone, the mean over all is known by now; its interval is the slow part of these figures.
    (whole,) = found.values() if len(found) == 1 else [means(marks)]
    return {
        **about,
        **figures(marks, whole),
        "mean": _trees(means_over_sets([*found.values()])),
        "sets": {name: figures(part, found[name]) for name, part in sets.items()},
        "kinds": {name: figures(part, means(part)) for name, part in by_kind(marks).items()},
    }


def figures(marks: Sequence[Mark], found: Mapping[str, Estimate]) -> Tree:
    """Counts, and every mean that can be taken; questions lost to a failure are in none."""
    return {"questions": len(marks), "unusable": sum(mark.values is None for mark in marks), **_trees(found)}


def means(marks: Sequence[Mark]) -> dict[str, Estimate]:
    """The mean of each measure over the questions of which it was taken."""
    taken = {name: values(marks, name) for name in MEASURES}
    return {name: estimate(each, shares=name not in COUNTS) for name, each in taken.items() if each}


def means_over_sets(sets: Sequence[Mapping[str, Estimate]]) -> dict[str, Estimate]:
    """The mean over the sets of the mean of each, where every set has one."""
    return {name: joined([each[name] for each in sets]) for name in MEASURES if all(name in each for each in sets)}


def by_kind(marks: Sequence[Mark]) -> dict[str, list[Mark]]:
    """The marks of each kind of question, those without one last, so that they add up; none where no kind is known."""
    kinds: dict[str, list[Mark]] = {}
    for mark in marks:
        kinds.setdefault(known_kind(mark.question) or UNKNOWN, []).append(mark)
    if kinds.keys() <= {UNKNOWN}:
        return {}
    return dict(sorted(kinds.items(), key=lambda entry: (entry[0] == UNKNOWN, place(entry[0]))))


def _trees(found: Mapping[str, Estimate]) -> Tree:
    return {name: asdict(mean) for name, mean in found.items()}
