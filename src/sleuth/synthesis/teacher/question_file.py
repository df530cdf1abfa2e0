"""Question files made by a teacher: questions, report and cached replies side by side; a killed run can be resumed."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from sleuth.corpus.progress import Progress, silent
from sleuth.corpus.questions import write_rows
from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.retrieval.retriever import Retriever
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import encode_json, read_json
from sleuth.synthesis.teacher.calls import TeacherCalls
from sleuth.synthesis.teacher.pipeline import TeacherConfig, TeacherResult, make_questions
from sleuth.synthesis.teacher.prompts import load_prompts
from sleuth.synthesis.teacher.reply_cache import ReplyCache
from sleuth.synthesis.teacher.teacher import TeacherSource

FORMAT = 1


def report_path(out: Path) -> Path:
    """Return the report beside a question file: NAME.report.json."""
    return out.with_name(f"{_stem(out)}.report.json")


def replies_path(out: Path) -> Path:
    """Return the cached replies beside a question file: NAME.replies.jsonl."""
    return out.with_name(f"{_stem(out)}.replies.jsonl")


def require_unfinished(out: Path) -> None:
    """Raise InputError if the question file exists, unless its report says that calls are left to make."""
    if out.exists():
        report = report_path(out)
        if not report.is_file() or read_json(report).get("complete") is not False:
            raise InputError(f"{out} already exists; choose another name, or remove it")


async def make_question_file(
    passages: Sequence[Passage],
    source: TeacherSource,
    out: Path,
    config: TeacherConfig,
    *,
    prompts: Path | None = None,
    retriever: Retriever | None = None,
    progress: Progress = silent,
    excluded: frozenset[str] = frozenset(),
) -> TeacherResult:
    """Make questions with a teacher and write them to `out`, with a report of counts and costs beside it.

    Replies are cached beside `out`: a run that is killed, or whose calls failed, continues where it was. If calls
    failed, the file has the questions that do not depend on them, and the next run replaces it.
    """
    require_unfinished(out)
    loaded = load_prompts(prompts)
    await asyncio.to_thread(source.check)
    started = perf_counter()
    with ReplyCache(replies_path(out)) as cache:
        async with source.open() as teacher:
            calls = TeacherCalls(teacher, cache)
            loading = perf_counter() - started
            result = await make_questions(passages, calls, loaded, config, retriever, progress, excluded)
        if result.rows:
            write_rows(out, result.rows)
        digest = hashlib.sha256(repr(sorted(loaded.items())).encode()).hexdigest()
        report: dict[str, Any] = {
            "format": FORMAT,
            "complete": not result.waiting,
            "teacher": {"model": source.model, **teacher.identity},
            "prompts_sha256": digest,
            "config": asdict(config),
            "counts": result.report(),
            "costs": calls.report(),
            "seconds": {"loading": round(loading, 3), "all": round(perf_counter() - started, 3)},
            "last_failure": calls.last_failure or None,
        }
        with atomic_write(report_path(out)) as temporary:
            temporary.write_bytes(encode_json(report))
    return result


def describe_report(path: Path) -> str:
    """Return a Markdown table of what each filter removed, and one of the costs."""
    report = json.loads(path.read_bytes())
    counts, costs = report["counts"], report["costs"]
    lines = ["| step | candidates |", "|---|---:|", f"| proposed | {counts['proposed']:,} |"]
    lines += [f"| {name} | -{count:,} |" for name, count in counts["removed"].items() if count]
    lines += [f"| waiting for failed calls | -{counts['waiting']:,} |"] if counts["waiting"] else []
    lines += [f"| accepted | {counts['accepted']:,} |", ""]
    lines += ["| calls | made | cached | refused | failed | prompt tokens | new tokens | s |"]
    lines += ["|---|" + "---:|" * 7]
    names = ("calls", "cached", "refused", "failed", "prompt_tokens", "completion_tokens", "seconds")
    lines += [
        f"| {stage} | " + " | ".join(f"{cost[name]:,.0f}" for name in names) + " |" for stage, cost in costs.items()
    ]
    return "\n".join(lines) + "\n"


def _stem(out: Path) -> str:
    return out.name.removesuffix(".gz").removesuffix(".jsonl")
