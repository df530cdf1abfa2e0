"""The viewer's API: the query parameters of each path, and responses as JSON-compatible values."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sleuth.errors import InputError
from sleuth.http.responses import HttpProblem
from sleuth.records import StopReason
from sleuth.runs.run import STEP
from sleuth.view import listing
from sleuth.view.jsonl import Tree
from sleuth.view.library import (
    FINAL,
    MANIFEST,
    Kind,
    Library,
    ViewedFolder,
    metrics_since,
    read_document,
    recent_workers,
    status,
)
from sleuth.view.trajectory import TokenizerCache, full_trajectory, neighbours
from sleuth.view.trajectory_files import INDEX_TIMEOUT, TrajectoryFiles, TrajectoryFilter, TrajectoryId, total_rows

CACHED = 32  # folders whose indexes stay in memory
CACHED_COMPARISONS = 4
MAX_SAMPLES = 256  # maximum per group
FIGURES = ("questions", "left_out", "unusable", "mean", "all", "sets")  # entries of a comparison

Text = Annotated[str, Field(max_length=2000)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Limit = Annotated[int, Field(ge=1, le=200)]
# Takes two folders and whether to compare only common questions; returns figures and `pairs` of questions.
Compare = Callable[[Path, Path, bool], Mapping[str, Any]]
Change = Literal["all", "won", "lost", "same", "unknown"]


class Parameters(BaseModel):
    """Query parameters; unknown ones are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunParameters(Parameters):
    run: Text


class EvaluationParameters(Parameters):
    evaluation: Text


class FolderParameters(Parameters):
    run: Text | None = None
    evaluation: Text | None = None

    @property
    def folder(self) -> tuple[Kind, str]:
        match self.run, self.evaluation:
            case str(run), None:
                return "run", run
            case None, str(evaluation):
                return "evaluation", evaluation
        raise HttpProblem(400, "give either run or evaluation, with an id from /api/library")


class MetricsParameters(RunParameters):
    cursor: Text | None = None


class TrajectoriesParameters(FolderParameters):
    step_from: Count | None = None
    step_to: Count | None = None
    question: Text | None = None
    source: Text | None = None
    reward_min: Number | None = None
    reward_max: Number | None = None
    stop: list[StopReason] = []
    group: Count | None = None
    sample: Count | None = None
    segments_min: Count | None = None
    text: Text | None = None
    order: Literal["new", "old"] = "new"
    limit: Limit = 50
    cursor: Text | None = None

    @property
    def filter(self) -> TrajectoryFilter:
        values = self.model_dump(exclude={"run", "evaluation", "order", "limit", "cursor", "stop", "text"})
        return TrajectoryFilter(**values, stops=tuple(each.value for each in self.stop), text=self.text or None)


class TrajectoryParameters(FolderParameters):
    at: Text
    tokens: bool = True


class GroupParameters(RunParameters):
    step: Count
    group: Count
    tokens: bool = False


class QuestionParameters(FolderParameters):
    question: Text
    source: Text | None = None


class QuestionsParameters(FolderParameters):
    text: Text | None = None
    limit: Limit = 50
    first: Annotated[Count, Field(alias="from")] = 0


class ComparisonParameters(Parameters):
    first: Text
    second: Text
    measure: Text = "em"
    common: bool = False
    show: Change = "all"
    source: Text | None = None
    limit: Limit = 50
    start: Annotated[Count, Field(alias="from")] = 0


class ComparisonCache:
    """Recent comparisons; `measures` maps measures to labels, `counts` are measures without a better direction."""

    def __init__(self, compare: Compare, measures: Mapping[str, str], counts: Sequence[str]) -> None:
        self.measures, self.counts = measures, counts
        # The file stamps serve only as part of the cache key.
        self._compare = lru_cache(maxsize=CACHED_COMPARISONS)(
            lambda first, second, common, stamps: compare(first, second, common)  # noqa: ARG005
        )

    def load(self, first: ViewedFolder, second: ViewedFolder, common: bool) -> Mapping[str, Any]:
        """Compare two finished evaluations; the result is cached until their files change."""
        stamps = (*_file_stamps(first), *_file_stamps(second))
        try:
            return self._compare(first.path, second.path, common, stamps)
        except InputError as error:
            raise HttpProblem(400, str(error)) from error


class Api:
    """Responses about the runs and evaluations of a library; trajectory indexes persist in the folder `cache`."""

    def __init__(
        self, library: Library, comparisons: ComparisonCache, tokenizers: TokenizerCache, cache: Path | None
    ) -> None:
        self.library, self.comparisons, self.tokenizers = library, comparisons, tokenizers
        # Keeps the indexes of recently used folders in memory.
        self._trajectory_files = lru_cache(maxsize=CACHED)(lambda kind, folder: TrajectoryFiles(folder, kind, cache))

    def run(self, query: RunParameters) -> Tree:
        folder = self.library.find("run", query.run)
        steps = [STEP.fullmatch(each.name) for each in folder.entries("checkpoints")]
        files = self._trajectory_files("run", folder)
        return {
            **status(folder, "run"),
            "manifest": read_document(folder, MANIFEST),
            "summary": read_document(folder, FINAL["run"]),
            "parity": read_document(folder, "parity.json"),
            "best": read_document(folder, "best.json"),
            "checkpoints": sorted(int(step[1]) for step in steps if step is not None),
            "steps": [file.step for file in files.files()],
            "trajectories": total_rows(files.files()),
            "stops": [each.value for each in StopReason],
            "tokenizer": self.tokenizers.load(folder) is not None,
        }

    def metrics(self, query: MetricsParameters) -> Tree:
        return metrics_since(self.library.find("run", query.run), query.cursor)

    def workers(self, query: RunParameters) -> Tree:
        return recent_workers(self.library.find("run", query.run))

    def trajectories(self, query: TrajectoriesParameters) -> Tree:
        after = None if query.cursor is None else TrajectoryId.parse(query.cursor)
        files = self._find_files(query)
        return listing.trajectory_page(files, query.filter, order=query.order, limit=query.limit, after=after)

    def trajectory(self, query: TrajectoryParameters) -> Tree:
        files, at = self._find_files(query), TrajectoryId.parse(query.at)
        found = full_trajectory(files, at, self.tokenizers.load(files.folder), query.tokens)
        return {**found, "neighbours": neighbours(files, at)}

    def group(self, query: GroupParameters) -> Tree:
        files = self._trajectory_files("run", self.library.find("run", query.run))
        wanted = TrajectoryFilter(step_from=query.step, step_to=query.step, group=query.group)
        matches = listing.search(files, wanted, budget=INDEX_TIMEOUT).matches
        tokenizer, samples, broken = self.tokenizers.load(files.folder), list[Tree](), list[str]()
        for row in listing.first_rows(files, matches, MAX_SAMPLES):
            try:
                samples.append(full_trajectory(files, TrajectoryId.parse(row["at"]), tokenizer, query.tokens))
            except HttpProblem as problem:
                broken.append(str(problem))
        if not samples:
            if broken:
                raise HttpProblem(503, broken[0])
            raise HttpProblem(404, f"step {query.step} of {query.run} has no group {query.group}")
        about = {name: samples[0][name] for name in ("question_id", "data_source", "question", "golden_answers")}
        return {"step": query.step, "group": query.group, **about, "samples": samples, "broken": broken}

    def question(self, query: QuestionParameters) -> Tree:
        return listing.question_history(self._find_files(query), query.question, query.source)

    def questions(self, query: QuestionsParameters) -> Tree:
        return listing.question_page(self._find_files(query), query.text, query.first, query.limit)

    def evaluation(self, query: EvaluationParameters) -> Tree:
        folder = self.library.find("evaluation", query.evaluation)
        return {
            **status(folder, "evaluation"),
            "manifest": read_document(folder, MANIFEST),
            "measures": self.comparisons.measures,
            "counts": self.comparisons.counts,
            "tokenizer": self.tokenizers.load(folder) is not None,
            "results": read_document(folder, FINAL["evaluation"]),
        }

    def compare(self, query: ComparisonParameters) -> Tree:
        if query.measure not in self.comparisons.measures:
            expected = ", ".join(self.comparisons.measures)
            raise HttpProblem(400, f"measure is {query.measure[:80]!r}; expected one of {expected}")
        first, second = (self.library.find("evaluation", each) for each in (query.first, query.second))
        found = self.comparisons.load(first, second, query.common)
        files = self._trajectory_files("evaluation", first), self._trajectory_files("evaluation", second)
        wanted = query.model_dump(include={"measure", "show", "source", "limit"})
        labels = {"measures": self.comparisons.measures, "counts": self.comparisons.counts}
        return {**comparison_page(found, files, first=query.start, **wanted), **labels}

    def _find_files(self, query: FolderParameters) -> TrajectoryFiles:
        kind, name = query.folder
        return self._trajectory_files(kind, self.library.find(kind, name))


def comparison_page(
    found: Mapping[str, Any],
    files: tuple[TrajectoryFiles, TrajectoryFiles],
    *,
    measure: str,
    show: Change,
    source: str | None,
    first: int,
    limit: int,
) -> Tree:
    pairs = [pair for pair in found["pairs"] if source in (None, pair["data_source"])]
    changes = []
    for pair in pairs:
        before, after = ((pair[side]["values"] or {}).get(measure) for side in ("first", "second"))
        if before is None or after is None:
            changes.append("unknown")
        else:
            changes.append("won" if after > before else "lost" if after < before else "same")
    shown = [(pair, change) for pair, change in zip(pairs, changes, strict=True) if show in ("all", change)]
    sides = {
        side: {"id": each.folder.id, "name": each.folder.path.name}
        for side, each in zip(("first", "second"), files, strict=True)
    }
    return {
        **sides,
        "measure": measure,
        **{name: found[name] for name in FIGURES},
        "tally": {each: changes.count(each) for each in ("won", "lost", "same", "unknown")},
        "show": show,
        "total": len(shown),
        "rows": [_row(pair, change, files, measure) for pair, change in shown[first:][:limit]],
    }


def _row(pair: Mapping[str, Any], change: str, files: tuple[TrajectoryFiles, TrajectoryFiles], measure: str) -> Tree:
    sides = {
        side: {
            "answer": pair[side]["answer"],
            "value": (pair[side]["values"] or {}).get(measure),
            "values": pair[side]["values"],
            "stop": pair[side]["stop"],
            "at": _find_trajectory(each, pair["data_source"], pair["id"]),
        }
        for side, each in zip(("first", "second"), files, strict=True)
    }
    about = {name: pair[name] for name in ("id", "data_source", "question", "golden_answers")}
    return {**about, "change": change, **sides}


def _find_trajectory(files: TrajectoryFiles, source: str, question_id: str) -> str | None:
    every = files.files()
    if not every:
        return None
    with files.lock:
        index, _ = files.index(every[0], time.monotonic() + INDEX_TIMEOUT)
        row = index.row_of(source, question_id)
    return None if row is None else str(TrajectoryId(0, row))


def _file_stamps(folder: ViewedFolder) -> tuple[Any, ...]:
    stamps: list[Any] = []
    for name in ("marks.jsonl", "results.json"):
        path = folder.find(name)
        if path is None:
            raise HttpProblem(
                400, f"{folder.id} is not finished: it has no {name}; finish it with `sleuth evaluate` first"
            )
        stat = path.stat()
        stamps += [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    return tuple(stamps)
