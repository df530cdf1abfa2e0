"""What a finished run leaves behind: summary.json for programs, report.html for people."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from sleuth.config import recipe
from sleuth.evaluate.comparison import compare, compare_by_kind
from sleuth.evaluate.folder import row_with_passages
from sleuth.evaluate.report import alternate_ends
from sleuth.evaluate.results import Evaluation, QuestionResult, question_kind
from sleuth.page.run_report import run_page
from sleuth.runs.atomic import atomic_write
from sleuth.runs.run import Run
from sleuth.train import ceiling, parity
from sleuth.train.assemble import Parts
from sleuth.train.examine import Measured
from sleuth.train.loop import Outcome
from sleuth.train.metrics import peak_memory_gib

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
    lost = {name: evaluation.failures() for name, evaluation in asked.items() if evaluation.unusable}
    questions = len(next(iter(asked.values())).results)
    unpaired = _unpaired(outcome.before.greedy, outcome.after.greedy) if outcome.before and outcome.after else []
    return {"held_out": {"questions": questions, "lost": lost, "kinds_without_pairs": unpaired}}


def _unpaired(before: Evaluation, after: Evaluation) -> list[str]:
    """Kinds without a question that is usable in both evaluations."""
    compared = compare_by_kind(before, after)
    return [kind for kind in before.by_kind() if kind not in compared]


def _compared(before: Measured, after: Measured) -> dict[str, Any]:
    comparison = compare(before.greedy.results, after.greedy.results)
    first, second = before.greedy.by_kind(), after.greedy.by_kind()
    kinds = compare_by_kind(before.greedy, after.greedy)
    searches = {kind: _searches(first[kind], second[kind]) for kind in kinds}
    return {
        "em_gain": asdict(comparison.gain("em")),
        "em_by_hops": {
            kind: {
                "before": asdict(first[kind].em),
                "after": asdict(second[kind].em),
                "gain": asdict(part.gain("em")),
                "questions": len(part.pairs),
            }
            for kind, part in kinds.items()
        },
        "searches_by_hops": {**searches, "all": _searches(before.greedy, after.greedy)},
    }


def _searches(before: Evaluation, after: Evaluation) -> dict[str, float]:
    return {"before": before.mean("searches").value, "after": after.mean("searches").value}


def _write_report(run: Run, found: Mapping[str, Any], after: Evaluation) -> None:
    page = run_page(
        title=run.path.name,
        manifest=run.manifest(),
        metrics=list(run.metrics()),
        summary=found,
        transcripts=[_transcript(result) for result in select_transcripts(after)],
        events=list(run.events()),
        parity=run.read_json(parity.FILE),
    )
    with atomic_write(run.path / "report.html") as path:
        path.write_text(page, encoding="utf-8")


def select_transcripts(after: Evaluation) -> list[QuestionResult]:
    """A few results of each kind in turn, wrong and right answers alternating."""
    ranked = (sorted(part.usable, key=lambda each: (each.values or {})["em"]) for part in after.by_kind().values())
    rounds = zip_longest(*map(alternate_ends, ranked))
    return [result for each in rounds for result in each if result is not None][:TRANSCRIPTS]


def _transcript(result: QuestionResult) -> dict[str, Any]:
    assert result.episode is not None  # noqa: S101  evaluations in memory keep their episodes
    shown = row_with_passages(result.episode.trajectory, result.episode.score)
    return shown | {"kind": question_kind(result.question) or result.question.data_source}
