"""The result of `sleuth start`: summary.json and report.html."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from sleuth.corpus import questions as question_files
from sleuth.corpus.survey import describe_survey, read_survey
from sleuth.evaluate.comparison import compare
from sleuth.evaluate.results import read_results
from sleuth.page.document import Section, cards, document, element, interval, read_estimate, short, table
from sleuth.page.evaluation_report import abstention_rows
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import read_json
from sleuth.start.stages import DOCUMENTS, EVALUATIONS, PARTS, QUESTIONS, RUN, StartOptions

ROWS = {"alone": "model alone", "rag": "model with RAG", "trained": "trained agent"}


def write_report(folder: Path, options: StartOptions) -> None:
    """Write the figures and the page; the page links the evaluations and the run."""
    results = {name: read_json(folder / EVALUATIONS / name / "results.json") for name in ROWS}
    summary = summarise(folder, options, results)
    with atomic_write(folder / "summary.json") as path:
        path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    with atomic_write(folder / "report.html") as path:
        path.write_text(page(summary, results), encoding="utf-8")


def summarise(folder: Path, options: StartOptions, results: dict[str, Any]) -> dict[str, Any]:
    """Collect the figures of all stages."""
    survey = read_survey(folder / DOCUMENTS)
    made = question_files.load(folder / QUESTIONS)
    evaluations = folder / EVALUATIONS
    pairs = compare(read_results(evaluations / "rag"), read_results(evaluations / "trained"))
    difference = pairs.gain("em")
    return {
        "options": options.as_json(),
        "documents": [] if survey is None else describe_survey(survey),
        "questions": {
            "made": len(made),
            "unanswerable": sum(question.answerable is False for question in made),
            "types": dict(Counter(question.type or "" for question in made).most_common()),
            "parts": {
                name: len(question_files.load(folder / PARTS / f"{name}.jsonl"))
                for name in ("train", "validation", "test")
            },
        },
        "em": {name: results[name].get("em") for name in ROWS},
        "trained_against_rag": {"value": difference.value, "low": difference.low, "high": difference.high},
        "abstention": results["trained"].get("abstention"),
        "seconds": read_json(folder / "seconds.json"),
        "serve": f"sleuth serve agent {folder / RUN}",
    }


def verdict(summary: dict[str, Any]) -> str:
    """Say in a sentence what training gained over RAG."""
    gain = summary["trained_against_rag"]
    shown = f"{100 * gain['value']:+.1f} EM points [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"
    if gain["low"] > 0:
        return f"The trained agent beats the same model with RAG: {shown}."
    if gain["high"] < 0:
        return f"The trained agent is worse than the same model with RAG: {shown}."
    return f"The trained agent cannot be told apart from the same model with RAG: {shown}."


def page(summary: dict[str, Any], results: dict[str, Any]) -> str:
    """Build the page."""
    em = {name: read_estimate(summary["em"][name]) for name in ROWS}
    parts = summary["questions"]["parts"]
    rows = [
        (element("a", label, href=f"{EVALUATIONS}/{name}/results.html"), interval(em[name]), short(parts["test"]))
        for name, label in ROWS.items()
    ]
    abstained = abstention_rows(results["trained"])
    seconds = [(name, f"{value:,.0f} s") for name, value in summary["seconds"].items()]
    return document(
        "An agent for your documents",
        cards([(label, interval(em[name]), "exact match") for name, label in ROWS.items()]),
        element("p", verdict(summary)),
        element("p", "Serve it: ", element("code", summary["serve"])),
        Section("Held-out questions", table(["", "Exact match", "Questions"], rows)),
        *([Section("Abstaining", table(["", "Mean", "Questions"], abstained))] if abstained else []),
        Section("Documents", *(element("p", line) for line in summary["documents"])),
        Section(
            "Questions",
            table(["Part", "Questions"], [(name, short(count)) for name, count in parts.items()]),
            table(["Type", "Questions"], [(name, short(n)) for name, n in summary["questions"]["types"].items()]),
        ),
        Section("Training", element("p", element("a", "Report of the run", href=f"{RUN}/report.html"))),
        Section("Time", table(["Stage", "Time"], seconds)),
        kind="Sleuth · start",
    )
