"""Reports of an evaluation: results.json, results.md and results.html."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

from sleuth.credentials import redact_tree
from sleuth.errors import ConfigError, InputError
from sleuth.evaluate.benchmarks import group_by
from sleuth.evaluate.folder import MANIFEST, RESULTS, EvaluationFolder
from sleuth.evaluate.judge import JUDGE, count_unjudged, with_saved_verdicts
from sleuth.evaluate.results import MEASURES, QuestionResult, score_folder, summarize, write_results
from sleuth.page.document import markdown_table
from sleuth.page.evaluation_report import NOTE, abstention_rows, evaluation_page, rows_by_set

TRANSCRIPTS = 12
REMEDY_CONTEXT = "raise agent.context_tokens with --set"

Tree = Mapping[str, Any]
Item = TypeVar("Item")
# Measures shown in Markdown without their interval, and their number of decimals.
_DECIMALS = {"format": 3, "retrieval_hit": 3, "searches": 2, "tokens": 1, "tokens_all": 1, "seconds": 2}


def load_results(folder: EvaluationFolder, known: Mapping[int, QuestionResult] | None = None) -> list[QuestionResult]:
    """Score the trajectories of a folder, except those with `known` results, and add the verdicts of the judge."""
    return with_saved_verdicts(folder, score_folder(folder, known or {}))


def write_report(folder: EvaluationFolder, results: Sequence[QuestionResult]) -> Tree:
    """Write all result files into the folder; return the figures."""
    manifest, judge = _read_manifest(folder), folder.read(JUDGE)
    notes = list(manifest["notes"])
    if count := sum(result.prompt_too_long for result in results):
        notes.append(f"The prompt did not fit for {count:,} questions, which count as wrong: {REMEDY_CONTEXT}.")
    found = summarize(
        results,
        title=manifest["title"],
        sample=manifest["sample"],
        notes=notes,
        stamp=manifest["stamp"],
        judged_by=redact_tree(judge),
        unjudged=count_unjudged(results) if judge else 0,
        wall_seconds=folder.seconds(),
        stops=dict(Counter(result.stop for result in results if result.stop is not None).most_common()),
    )
    transcripts = [*folder.rows(select_transcripts(results))]
    write_results(folder, results)
    folder.write_offsets()
    folder.write("results.md", markdown(found))
    folder.write("results.html", evaluation_page(found, MEASURES, notes_of(found), transcripts))
    # Written last: its presence means that the other files are complete.
    folder.write(RESULTS, json.dumps(found, indent=2, allow_nan=False) + "\n")
    return found


def check_failures(folder: EvaluationFolder, results: Sequence[QuestionResult]) -> str | None:
    """Describe the failed questions, if any; raises an error if all failed or no prompt fitted the context."""
    usable = [result for result in results if result.usable]
    if usable and all(result.prompt_too_long for result in usable):
        raise ConfigError(f"the prompt did not fit for any question; {REMEDY_CONTEXT}")
    failed = {position for position, result in enumerate(results) if not result.usable}
    if not failed:
        return None
    cause = next((row["failure"] for row in folder.rows(failed)), None)
    remedy = "fix the cause and repeat the command, which asks only the failed questions"
    if len(failed) == len(results):
        raise InputError(f"all questions failed ({cause}); {remedy}")
    return f"{len(failed):,} of {len(results):,} questions failed ({cause}); {remedy}"


def select_transcripts(results: Sequence[QuestionResult], count: int = TRANSCRIPTS) -> list[int]:
    """Select positions of questions to show, alternating between data sets and between wrong and right answers."""
    usable = (position for position, result in enumerate(results) if result.usable)
    by_set = group_by(usable, lambda position: results[position].question.data_source)
    for positions in by_set.values():
        positions.sort(key=lambda position: (results[position].values or {})["em"])
    rounds = zip_longest(*map(alternate_ends, by_set.values()))
    return [position for each in rounds for position in each if position is not None][:count]


def alternate_ends(ranked: Sequence[Item]) -> list[Item]:
    """Reorder the items: first, last, second, second to last, and so on."""
    return [ranked[-(turn // 2) - 1 if turn % 2 else turn // 2] for turn in range(len(ranked))]


def markdown(results: Tree) -> str:
    lines = [f"# {results['title']}", "", *_results_table(rows_by_set(results), results, "Set")]
    if results["kinds"]:
        lines += ["", *_results_table([*results["kinds"].items(), ("all", results)], results, "Kind")]
    if rows := abstention_rows(results):
        lines += ["", *markdown_table(("Abstaining", "Mean", "Questions"), rows)]
    return "\n".join([*lines, "", NOTE, *notes_of(results)]) + "\n"


def notes_of(results: Tree) -> list[str]:
    """Return notes for readers of the figures: sample, stop reasons, missing verdicts."""
    unjudged = results.get("unjudged") or 0
    stops = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in (results.get("stops") or {}).items())
    return [
        *([results["sample"]["sentence"]] if results.get("sample") else []),
        *(results.get("notes") or ()),
        *([f"Stop reasons: {stops}."] if stops else []),
        *([f"The judge gave no verdict on {unjudged:,} questions; its means exclude them."] if unjudged else []),
    ]


def _results_table(rows: Sequence[tuple[str, Tree]], results: Tree, first: str) -> list[str]:
    measures = [name for name in MEASURES if name in results]
    header = (first, "Questions", *(MEASURES[name] for name in measures), "Unusable")
    cells = (
        (label, f"{part['questions']:,}", *(_cell(name, part.get(name)) for name in measures), f"{part['unusable']:,}")
        for label, part in rows
    )
    return markdown_table(header, cells)


def _cell(name: str, mean: Tree | None) -> str:
    if mean is None:
        return "–"
    if name in _DECIMALS:
        return f"{mean['value']:,.{_DECIMALS[name]}f}"
    return f"{mean['value']:.3f} [{mean['low']:.3f}, {mean['high']:.3f}]"


def _read_manifest(folder: EvaluationFolder) -> Tree:
    manifest = folder.manifest()
    match manifest:
        case {"title": str(), "sample": None | {"sentence": str()}, "notes": [*notes], "stamp": dict()}:
            if all(isinstance(note, str) for note in notes):
                return manifest
    raise InputError(
        f"{folder.path / MANIFEST} is invalid: expected a title, a sample, notes and a stamp; restore it, or choose "
        "another folder with --out"
    )
