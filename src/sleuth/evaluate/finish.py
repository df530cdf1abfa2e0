"""The end of an evaluation: marks, figures and pages, made of what stands in its folder and of nothing else."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from sleuth.config.reward import RewardConfig
from sleuth.credentials import redacted_tree
from sleuth.errors import ConfigError, InputError
from sleuth.evaluate import judge as judges
from sleuth.evaluate import marks as marking
from sleuth.evaluate import report
from sleuth.evaluate.folder import MANIFEST, RESULTS, Folder
from sleuth.evaluate.marks import Mark
from sleuth.evaluate.results import MEASURES, results
from sleuth.page.evaluation import evaluation_page
from sleuth.reward.rubric import Rubric

TRANSCRIPTS = 12
RAISE = "raise agent.context_tokens with --set"

# Exact match is what evaluations report, whatever a run was paid for.
RUBRIC = Rubric(RewardConfig())


def measured(folder: Folder) -> list[Mark]:
    """The marks of a folder, with the verdicts of its judge where it had one."""
    return judges.remembered(folder, marking.measured(folder, RUBRIC))


def finish(folder: Folder, marks: Sequence[Mark]) -> Mapping[str, Any]:
    """Writes everything that is made of the marks into the folder; the figures."""
    about, judge = _about(folder), folder.read("judge.json")
    found = results(
        marks,
        title=about["title"],
        sample=about["sample"],
        notes=[*about["notes"], *([unfit] if (unfit := _unfit(marks)) else [])],
        stamp=about["stamp"],
        judged_by=redacted_tree(judge),
        unjudged=judges.unjudged(marks) if judge else 0,
        wall_seconds=folder.seconds(),
        stops=dict(Counter(mark.stop for mark in marks if mark.stop is not None).most_common()),
    )
    marking.write(folder, marks)
    folder.write_offsets()
    folder.write("results.md", report.markdown(found))
    folder.write("results.html", evaluation_page(found, MEASURES, report.notes(found), _transcripts(folder, marks)))
    # Last, since it says that all the others are there.
    folder.write(RESULTS, json.dumps(found, indent=2, allow_nan=False) + "\n")
    return found


def _about(folder: Folder) -> Mapping[str, Any]:
    """The manifest of a folder with all that its figures repeat of it."""
    about = folder.manifest()
    match about:
        case {"title": str(), "sample": None | {"sentence": str()}, "notes": [*notes], "stamp": dict()}:
            if all(isinstance(each, str) for each in notes):
                return about
    raise InputError(
        f"{folder.path / MANIFEST} is not as an evaluation writes it: expected a title, a sample, notes and a stamp; "
        "put it back, or choose another folder with --out"
    )


def failures(folder: Folder, marks: Sequence[Mark]) -> str | None:
    """What went wrong with questions that have no usable trajectory, in a sentence; where none has, it is raised.

    So it is where no prompt fitted: nothing was measured but that.
    """
    usable = [mark for mark in marks if mark.values is not None]
    if usable and all(mark.unfit for mark in usable):
        raise ConfigError(f"the prompt did not fit for any question, and the model was never asked; {RAISE}")
    lost = {place for place, mark in enumerate(marks) if mark.values is None}
    if not lost:
        return None
    why = next((row["failure"] for row in folder.rows(lost)), None)
    again = "mend what failed and give the same command again: only those are asked"
    if len(lost) == len(marks):
        raise InputError(f"no question was answered ({why}); {again}")
    return f"{len(lost):,} of {len(marks):,} questions were lost ({why}); {again}"


def _unfit(marks: Sequence[Mark]) -> str | None:
    """How many questions the model was never asked, since no room was left after their prompts."""
    count = sum(mark.unfit for mark in marks)
    return f"The prompt did not fit for {count:,} questions, which count as wrong: {RAISE}." if count else None


def chosen(marks: Sequence[Mark], count: int = TRANSCRIPTS) -> list[int]:
    """Places of questions worth reading: of each set in turn, the wrong first, for they tell more."""
    ranked: dict[str, list[int]] = {}
    for place, mark in enumerate(marks):
        if mark.values is not None:
            ranked.setdefault(mark.question.data_source, []).append(place)
    for places in ranked.values():
        places.sort(key=lambda place: (marks[place].values or {})["em"])
    mixed = (
        [places[-(turn // 2) - 1 if turn % 2 else turn // 2] for turn in range(len(places))]
        for places in ranked.values()
    )
    rounds = zip_longest(*mixed)
    return [place for each in rounds for place in each if place is not None][:count]


def _transcripts(folder: Folder, marks: Sequence[Mark]) -> list[Mapping[str, Any]]:
    return [*folder.rows(chosen(marks))]
