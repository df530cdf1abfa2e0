"""What a finished run leaves behind: summary.json for programs, report.html for people."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from sleuth.config import recipe
from sleuth.evaluate.compare import em_by_hops, gain, searches_by_hops
from sleuth.evaluate.kinds import kind
from sleuth.evaluate.suite import Asked, Evaluation
from sleuth.page.run import run_page
from sleuth.runs.atomic import atomic_write
from sleuth.runs.run import Run
from sleuth.runs.trajectory import trajectory_row
from sleuth.train import ceiling, parity
from sleuth.train.assemble import Parts
from sleuth.train.examine import Measured
from sleuth.train.loop import Outcome
from sleuth.train.memory import peak_memory_gib

TRANSCRIPTS = 10


def write(parts: Parts, outcome: Outcome) -> Mapping[str, Any]:
    """Writes report and summary into the run folder, the summary last, for it ends the run; returns the summary."""
    policy = recipe.resolve_policy(parts.config.model.policy)
    found = summary(outcome, ceiling.known(policy, parts.config))
    _write_report(parts.run, found, outcome.after.greedy if outcome.after else Evaluation(()))
    parts.run.write_summary(found)
    return found


def summary(outcome: Outcome, top: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Before and after with intervals, by kind of question, as far as they were asked, and what it took."""
    return {
        **_alone("before", outcome.before),
        **_alone("after", outcome.after),
        **(_compared(outcome.before, outcome.after) if outcome.before and outcome.after else {}),
        **_held_out(outcome),
        "ceiling": top,
        "steps": outcome.progress.step,
        "tokens": outcome.progress.tokens,
        "seconds": outcome.progress.seconds,
        "peak_memory_gib": peak_memory_gib(),
    }


def _alone(when: str, found: Measured | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {f"em_{when}": asdict(found.greedy.em), f"em_sampled_{when}": asdict(found.sampled.em)}


def _held_out(outcome: Outcome) -> dict[str, Any]:
    """How many questions were asked, and which evaluation lost how many of them to what; they are in no figure."""
    asked = {
        f"{sampling}{when}": evaluation
        for when, found in (("before", outcome.before), ("after", outcome.after))
        if found is not None
        for sampling, evaluation in (("", found.greedy), ("sampled_", found.sampled))
    }
    if not asked:
        return {}
    lost = {name: evaluation.lost() for name, evaluation in asked.items() if evaluation.unusable}
    questions = len(next(iter(asked.values())).asked)
    unpaired = _unpaired(outcome.before.greedy, outcome.after.greedy) if outcome.before and outcome.after else []
    return {"held_out": {"questions": questions, "lost": lost, "kinds_without_pairs": unpaired}}


def _unpaired(before: Evaluation, after: Evaluation) -> list[str]:
    """The kinds of which nothing can be compared: no question of theirs was usable both times."""
    return [kind for kind in before.by_hops() if kind not in em_by_hops(before, after)]


def _compared(before: Measured, after: Measured) -> dict[str, Any]:
    every = {"before": before.greedy.searches.value, "after": after.greedy.searches.value}
    return {
        "em_gain": asdict(gain(before.greedy, after.greedy)),
        "em_by_hops": em_by_hops(before.greedy, after.greedy),
        "searches_by_hops": searches_by_hops(before.greedy, after.greedy) | {"all": every},
    }


def _write_report(run: Run, found: Mapping[str, Any], after: Evaluation) -> None:
    page = run_page(
        title=run.path.name,
        manifest=run.manifest(),
        metrics=list(run.metrics()),
        summary=found,
        transcripts=[_shown(asked) for asked in chosen(after)],
        events=list(run.events()),
        parity=run.read_json(parity.FILE),
    )
    with atomic_write(run.path / "report.html") as path:
        path.write_text(page, encoding="utf-8")


def chosen(after: Evaluation) -> list[Asked]:
    """A few of each kind in turn, wrong and right ones: the wrong first, for they tell more."""
    rounds = zip_longest(*(_wrong_and_right(part) for part in after.by_hops().values()))
    return [asked for each in rounds for asked in each if asked is not None][:TRANSCRIPTS]


def _wrong_and_right(part: Evaluation) -> list[Asked]:
    """The usable ones from the worst and from the best in turn."""
    usable = [(each.score.parts["em"], each) for each in part.asked if each.score is not None]
    ranked = [each for _, each in sorted(usable, key=lambda scored: scored[0])]
    return [ranked[-(place // 2) - 1 if place % 2 else place // 2] for place in range(len(ranked))]


def _shown(asked: Asked) -> dict[str, Any]:
    """A trajectory row with the text of what was found, which the trajectory file leaves to the index."""
    shown = trajectory_row(asked.trajectory, asked.score) | {"kind": kind(asked.question)}
    for turn, written in zip(asked.trajectory.turns, shown["turns"], strict=True):
        for hit, entry in zip(turn.hits, written["hits"], strict=True):
            entry |= {"title": hit.passage.title, "text": hit.passage.text}
    return shown
