"""The result of `sleuth start`: summary.json and report.html."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sleuth.corpus import questions as question_files
from sleuth.corpus.survey import describe_survey, read_survey
from sleuth.evaluate.abstention import is_right
from sleuth.evaluate.comparison import compare
from sleuth.evaluate.results import Evaluation, QuestionResult, read_results
from sleuth.evaluate.statistics import paired_difference
from sleuth.page.document import Section, cards, document, element, interval, read_estimate, short, table
from sleuth.page.evaluation_report import abstention_rows
from sleuth.records import Estimate
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import read_json
from sleuth.start.sizes import Sizes
from sleuth.start.stages import DIFFICULTY as DIFFICULTY_FILE
from sleuth.start.stages import DOCUMENTS, EVALUATIONS, PARTS, QUESTIONS, RUN, Stages, StartOptions
from sleuth.synthesis.candidate import DIFFICULTY

ROWS = {
    "alone": "model alone",
    "rag": "model with RAG",
    "rag-cold-start": "RAG after the cold start",
    "trained": "trained agent",
}
EXAMPLES = 12  # test questions on the page
MAX_ANSWER = 200  # characters of an answer on the page


def write_report(folder: Path, options: StartOptions, sizes: Sizes) -> None:
    """Write the figures and the page; the page links the evaluations and the run."""
    results = {name: read_json(folder / EVALUATIONS / name / "results.json") for name in ROWS}
    answers = {name: read_results(folder / EVALUATIONS / name) for name in ROWS}
    summary = summarise(folder, options, results, answers)
    summary |= commands(Stages(options, folder, sizes), summary)
    with atomic_write(folder / "summary.json") as path:
        path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    with atomic_write(folder / "report.html") as path:
        path.write_text(page(summary, results, examples(answers)), encoding="utf-8")


Answers = Mapping[str, Sequence[QuestionResult]]


def summarise(folder: Path, options: StartOptions, results: dict[str, Any], answers: Answers) -> dict[str, Any]:
    """Collect the figures of all stages."""
    survey = read_survey(folder / DOCUMENTS)
    made = question_files.load(folder / QUESTIONS)
    gains = {name: _gain(answers[name], answers["trained"]) for name in ROWS if name != "trained"}
    difficulties = [float(row.extra[DIFFICULTY]) for row in question_files.read_rows(folder / DIFFICULTY_FILE)]
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
        "right": {name: asdict(Evaluation(tuple(answers[name])).right) for name in ROWS},
        "failed": {name: sum(is_right(each) is None for each in answers[name]) for name in ROWS},
        "em": {name: results[name].get("em") for name in ROWS},
        "difficulty": {
            "mean": sum(difficulties) / len(difficulties),
            "always_right": difficulties.count(0.0),
            "never_right": difficulties.count(1.0),
        },
        "gain": {name: asdict(gain) for name, gain in gains.items()},
        "abstention": results["trained"].get("abstention"),
        "seconds": read_json(folder / "seconds.json"),
    }


def _gain(before: Sequence[QuestionResult], after: Sequence[QuestionResult]) -> Estimate:
    """Return the paired difference in right answers, over the questions that both answered without a failure."""
    both = [(is_right(pair.first), is_right(pair.second)) for pair in compare(before, after).pairs]
    known = [(float(first), float(second)) for first, second in both if first is not None and second is not None]
    return paired_difference([first for first, _ in known], [second for _, second in known])


def commands(stages: Stages, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return how to ask and serve the trained agent, or RAG after the cold start if that is significantly better."""
    trained = summary["gain"]["rag-cold-start"]["high"] >= 0
    agent = stages.agent(trained=trained)
    return {
        "recommended": "trained" if trained else "rag-cold-start",
        "ask": shlex.join(("sleuth", "ask", *agent)),
        "serve": shlex.join(("sleuth", "serve", "agent", *agent)),
    }


def verdict(summary: dict[str, Any]) -> str:
    """Summarise the gains in right answers over RAG, before and after the cold start."""
    others = {"rag": "the same model with RAG", "rag-cold-start": "RAG after the cold start"}
    sentences = [_compare(summary["gain"][name], label) for name, label in others.items()]
    if summary["recommended"] == "rag-cold-start":
        sentences.append("The commands below therefore use RAG after the cold start instead of the trained agent.")
    if failed := sum(summary["failed"].values()):
        sentences.append(f"{failed:,} episodes failed and are left out.")
    return " ".join(sentences)


def _compare(gain: Mapping[str, float], other: str) -> str:
    shown = f"{100 * gain['value']:+.1f} points [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"
    if gain["low"] > 0:
        return f"The trained agent beats {other}: {shown}."
    if gain["high"] < 0:
        return f"The trained agent is worse than {other}: {shown}."
    return f"The trained agent does not differ significantly from {other}: {shown}."


def examples(answers: Answers) -> list[tuple[str, ...]]:
    """Return test questions with the answers of each row, those on which RAG and the agent differ first."""
    trained = {each.question.id: each for each in answers["trained"]}
    rows = []
    for each in answers["rag"]:
        other = trained.get(each.question.id)
        if other is not None:
            gold = " | ".join(each.question.golden_answers) if each.question.answerable is not False else "(none)"
            rows.append((is_right(each) == is_right(other), (each, gold, other)))
    rows.sort(key=lambda row: row[0])
    return [
        (first.question.question, gold, _shown(first), _shown(second)) for _, (first, gold, second) in rows[:EXAMPLES]
    ]


def _shown(result: QuestionResult) -> str:
    answer = "(no answer)" if result.answer is None else result.answer[:MAX_ANSWER]
    return f"{'✓' if is_right(result) else '✗'} {answer}"


def page(summary: dict[str, Any], results: dict[str, Any], shown: Sequence[tuple[str, ...]]) -> str:
    """Build the page."""
    right = {name: read_estimate(summary["right"][name]) for name in ROWS}
    parts = summary["questions"]["parts"]
    rows = [
        (
            element("a", label, href=f"{EVALUATIONS}/{name}/results.html"),
            interval(right[name]),
            short(parts["test"]),
            interval(read_estimate(summary["gain"].get(name)), sign=True) if name in summary["gain"] else "",
        )
        for name, label in ROWS.items()
    ]
    abstained = abstention_rows(results["trained"])
    seconds = [(name, f"{value:,.0f} s") for name, value in summary["seconds"].items()]
    return document(
        "An agent for your documents",
        cards([(label, interval(right[name]), "right answers") for name, label in ROWS.items()]),
        element("p", verdict(summary)),
        element("p", "Serve it: ", element("code", summary["serve"])),
        Section(
            "Questions about held-out documents",
            table(["", "Right answers", "Questions", "Gain of the trained agent"], rows),
            element("p", 'Right: an exact match, or "I don\'t know" if the documents do not contain the answer.'),
        ),
        Section("Examples", table(["Question", "Right answer", "Model with RAG", "Trained agent"], shown)),
        *([Section("Abstaining", table(["", "Mean", "Questions"], abstained))] if abstained else []),
        Section("Documents", *(element("p", line) for line in summary["documents"])),
        Section(
            "Questions",
            table(["Part", "Questions"], [(name, short(count)) for name, count in parts.items()]),
            table(["Type", "Questions"], [(name, short(n)) for name, n in summary["questions"]["types"].items()]),
            element("p", _describe_difficulty(summary["difficulty"])),
        ),
        Section("Training", element("p", element("a", "Report of the run", href=f"{RUN}/report.html"))),
        Section("Time", table(["Stage", "Time"], seconds)),
        kind="Sleuth · start",
    )


def _describe_difficulty(difficulty: dict[str, float]) -> str:
    return (
        f"Before reinforcement learning, the agent failed the training questions in "
        f"{100 * difficulty['mean']:.0f}% of its attempts: {difficulty['always_right']:,} questions were always "
        f"answered correctly, {difficulty['never_right']:,} never."
    )
