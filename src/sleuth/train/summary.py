"""Results of a finished run: summary.json and report.html."""

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
from sleuth.train import parity
from sleuth.train.held_out import HeldOutResults, load_ceiling
from sleuth.train.loop import Outcome
from sleuth.train.metrics import peak_memory_gib
from sleuth.train.parts import Parts

TRANSCRIPTS = 10


def write_summary(parts: Parts, outcome: Outcome) -> Mapping[str, Any]:
    """Write report.html and then summary.json, which marks the run as finished; return the summary."""
    run, policy = parts.run, recipe.resolve_policy(parts.config.model.policy)
    summary = summarise(outcome, load_ceiling(policy, parts.config))
    page = run_page(
        title=run.path.name,
        manifest=run.manifest(),
        metrics=list(run.metrics()),
        summary=summary,
        transcripts=[_transcript(each) for each in select_transcripts(outcome.after.greedy)] if outcome.after else [],
        events=list(run.events()),
        parity=run.read_json(parity.FILE),
    )
    with atomic_write(run.path / "report.html") as path:
        path.write_text(page, encoding="utf-8")
    run.write_summary(summary)
    return summary


def summarise(outcome: Outcome, expert_ceiling: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Summarise exact match before and after training, overall and by kind of question, and the cost of the run."""
    before, after = outcome.before, outcome.after
    exact_match: dict[str, Any] = {}
    for when, results in (("before", before), ("after", after)):
        if results is not None:
            exact_match[f"em_{when}"] = asdict(results.greedy.em)
            exact_match[f"em_sampled_{when}"] = asdict(results.sampled.em)
    return {
        **exact_match,
        **(_comparison(before, after) if before and after else {}),
        **_held_out(before, after),
        "ceiling": expert_ceiling,
        "steps": outcome.progress.step,
        "tokens": outcome.progress.tokens,
        "seconds": outcome.progress.seconds,
        "peak_memory_gib": peak_memory_gib(),
    }


def _held_out(before: HeldOutResults | None, after: HeldOutResults | None) -> dict[str, Any]:
    """Return the number of held-out questions, and the number that each evaluation lost to failures."""
    evaluations = {
        f"{sampling}{when}": evaluation
        for when, results in (("before", before), ("after", after))
        if results is not None
        for sampling, evaluation in (("", results.greedy), ("sampled_", results.sampled))
    }
    if not evaluations:
        return {}
    lost = {name: evaluation.failures() for name, evaluation in evaluations.items() if evaluation.unusable}
    unpaired: list[str] = []
    if before and after:
        compared = compare_by_kind(before.greedy, after.greedy)
        unpaired = [kind for kind in before.greedy.by_kind() if kind not in compared]
    questions = len(next(iter(evaluations.values())).results)
    return {"held_out": {"questions": questions, "lost": lost, "kinds_without_pairs": unpaired}}


def _comparison(before: HeldOutResults, after: HeldOutResults) -> dict[str, Any]:
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


def select_transcripts(after: Evaluation) -> list[QuestionResult]:
    """Select a few results of each kind of question, alternating between wrong and right answers."""
    ranked = (sorted(part.usable, key=lambda each: (each.values or {})["em"]) for part in after.by_kind().values())
    rounds = zip_longest(*map(alternate_ends, ranked))
    return [result for each in rounds for result in each if result is not None][:TRANSCRIPTS]


def _transcript(result: QuestionResult) -> dict[str, Any]:
    assert result.episode is not None  # noqa: S101  evaluations in memory keep their episodes
    shown = row_with_passages(result.episode.trajectory, result.episode.score)
    return shown | {"kind": question_kind(result.question) or result.question.data_source}
