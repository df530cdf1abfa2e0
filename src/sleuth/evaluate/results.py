"""Results per question, and the evaluation figures computed from them."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, FiniteFloat, TypeAdapter, ValidationError

from sleuth.errors import InputError
from sleuth.evaluate.abstention import abstention_figures
from sleuth.evaluate.benchmarks import group_by
from sleuth.evaluate.folder import QUESTION_RESULTS, QUESTIONS, RESULTS, TRAJECTORIES, EvaluationFolder, read_trajectory
from sleuth.evaluate.statistics import combine, estimate
from sleuth.records import Estimate, Question, Score, StopReason, Trajectory
from sleuth.reward.rubric import score_by_em
from sleuth.runs.json_files import read_rows
from sleuth.runs.trajectory import first_problem

# Measures and their column headings, in display order.
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
# Unbounded measures; a higher value is neither better nor worse.
COUNTS = frozenset({"searches", "tokens", "tokens_all", "seconds"})
UNKNOWN_KIND = "not known"
QUESTION_TYPES = {"comparison": "comparison", "yes_no": "yes/no"}
_KIND_ORDER = ("1 hop", "2 hops", "3 hops", "4 hops", *QUESTION_TYPES.values())
_HEADLINE = ("em", "f1", "searches")  # measures recorded in the metrics of a training run

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """A finished episode: its trajectory, its score (None if unusable) and its duration."""

    trajectory: Trajectory
    score: Score | None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """The answer to one question, with its measures in `values`; None if the episode is unusable.

    Unavailable measures, such as a judge verdict that failed, are missing from `values`. `stop` is the stop
    reason. `episode` is available only in memory, in evaluations during training.
    """

    question: Question
    answer: str | None
    values: Mapping[str, float] | None
    stop: str | None = None
    episode: ScoredTrajectory | None = None

    @classmethod
    def of(cls, episode: ScoredTrajectory, *, keep_episode: bool = True) -> "QuestionResult":
        trajectory, score = episode.trajectory, episode.score
        kept = episode if keep_episode else None
        if score is None:
            return cls(trajectory.question, None, None, trajectory.stop.value, kept)
        values = dict(score.parts)
        if trajectory.ids or not trajectory.turns:
            values["tokens"] = float(sum(trajectory.sampled))
        elif reported := sum(turn.tokens for turn in trajectory.turns):  # a chat server may report its own counts
            values["tokens"] = float(reported)
        if trajectory.ids:
            values["tokens_all"] = float(len(trajectory.ids))
        if episode.seconds is not None:
            values["seconds"] = episode.seconds
        return cls(trajectory.question, trajectory.answer, values, trajectory.stop.value, kept)

    @property
    def usable(self) -> bool:
        return self.values is not None

    @property
    def prompt_too_long(self) -> bool:
        """Whether the prompt filled the context, so that the model generated nothing."""
        return self.stop == StopReason.OUT_OF_TOKENS and self.values is not None and self.values.get("tokens") == 0

    @property
    def key(self) -> tuple[str, str]:
        return self.question.data_source, self.question.id


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of all questions in order; means are over usable questions."""

    results: tuple[QuestionResult, ...]

    def __repr__(self) -> str:
        em = self.em if self.usable else None
        shown = "" if em is None else f", em={em.value:.3f} [{em.low:.3f}, {em.high:.3f}]"
        return f"Evaluation({len(self.results)} questions, {self.unusable} unusable{shown})"

    def rows(self) -> list[Tree]:
        """One row per question, with its answer, its stop reason and its measures."""
        return [
            {**question_fields(each.question), "answer": each.answer, "stop": each.stop, **(each.values or {})}
            for each in self.results
        ]

    def mean(self, measure: str) -> Estimate:
        """Mean of a measure; raises ValueError if no question has it."""
        return estimate(values_of(self.results, measure), proportion=measure not in COUNTS)

    @property
    def em(self) -> Estimate:
        return self.mean("em")

    @property
    def abstention(self) -> dict[str, Estimate]:
        """Figures of abstaining; empty if nothing abstains or is unanswerable."""
        return abstention_figures(self.results)

    @property
    def right(self) -> Estimate:
        """Exact match, where "I don't know" is the only right answer to an unanswerable question."""
        return self.abstention.get("right", self.em)

    @property
    def usable(self) -> list[QuestionResult]:
        return [result for result in self.results if result.usable]

    @property
    def unusable(self) -> int:
        return len(self.results) - len(self.usable)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [result.episode.trajectory for result in self.results if result.episode is not None]

    def failures(self) -> dict[str, int]:
        return dict(Counter(str(result.stop) for result in self.results if not result.usable))

    def by_kind(self) -> "dict[str, Evaluation]":
        """Split by kind of question, or by data set if the kind is unknown."""
        parts = group_by_kind(self.results, fallback=lambda question: question.data_source)
        return {kind: Evaluation(tuple(part)) for kind, part in parts.items()}

    def metrics(self, prefix: str) -> dict[str, float]:
        """Return flat metrics: means with `_low` and `_high` limits, and exact match and searches by kind."""
        flat = {"questions": float(len(self.results)), "unusable": float(self.unusable)}
        for name in _HEADLINE if self.usable else ():
            mean = self.mean(name)
            flat |= {name: mean.value, f"{name}_low": mean.low, f"{name}_high": mean.high}
        for name, mean in self.abstention.items():
            flat |= {f"abstain_{name}": mean.value, f"abstain_{name}_low": mean.low, f"abstain_{name}_high": mean.high}
        for kind, part in self.by_kind().items():
            slug = kind.replace(" ", "_").replace("/", "_")
            flat |= {f"{name}_{slug}": part.mean(name).value for name in ("em", "searches") if part.usable}
        return {f"{prefix}/{name}": value for name, value in flat.items()}


def question_kind(question: Question) -> str | None:
    """Return the kind of a question: comparison, yes/no, its number of hops or its type; None if unknown."""
    if question.type in QUESTION_TYPES:
        return QUESTION_TYPES[question.type]
    if question.hops is not None:
        return "1 hop" if question.hops == 1 else f"{question.hops} hops"
    return question.type.replace("_", " ") if question.type else None


def kind_order(kind: str) -> tuple[bool, int, str]:
    """Sort key: kinds by number of hops, then comparison, yes/no, other kinds by name, and unknown last."""
    return kind == UNKNOWN_KIND, _KIND_ORDER.index(kind) if kind in _KIND_ORDER else len(_KIND_ORDER), kind


def group_by_kind(
    results: Sequence[QuestionResult], fallback: Callable[[Question], str] = lambda _: UNKNOWN_KIND
) -> dict[str, list[QuestionResult]]:
    """Group results by kind of question, in display order; `fallback` names the kind if it is unknown."""
    kinds = group_by(results, lambda each: question_kind(each.question) or fallback(each.question))
    return dict(sorted(kinds.items(), key=lambda entry: kind_order(entry[0])))


def values_of(results: Iterable[QuestionResult], measure: str) -> list[float]:
    return [result.values[measure] for result in results if result.values is not None and measure in result.values]


def means(results: Sequence[QuestionResult]) -> dict[str, Estimate]:
    values = {name: values_of(results, name) for name in MEASURES}
    return {name: estimate(each, proportion=name not in COUNTS) for name, each in values.items() if each}


def summarize(results: Sequence[QuestionResult], **about: Any) -> Tree:
    """Compute the figures of results.json: all questions, the mean over data sets, each data set and each kind."""
    sets = group_by(results, lambda each: each.question.data_source)
    set_means = {name: means(part) for name, part in sets.items()}
    # The means of a single data set equal those of all questions; reuse them, because intervals are slow.
    (overall,) = set_means.values() if len(set_means) == 1 else [means(results)]
    over_sets = {
        name: combine([part[name] for part in set_means.values()])
        for name in MEASURES
        if all(name in part for part in set_means.values())
    }
    kinds = group_by_kind(results)
    if kinds.keys() <= {UNKNOWN_KIND}:
        kinds = {}
    return {
        **about,
        **_figures(results, overall),
        "mean": _as_json(over_sets),
        "sets": {name: _figures(part, set_means[name]) for name, part in sets.items()},
        "kinds": {name: _figures(part, means(part)) for name, part in kinds.items()},
        **({"abstention": _as_json(abstention)} if (abstention := abstention_figures(results)) else {}),
    }


def _figures(results: Sequence[QuestionResult], found: Mapping[str, Estimate]) -> Tree:
    return {"questions": len(results), "unusable": sum(not each.usable for each in results), **_as_json(found)}


def _as_json(found: Mapping[str, Estimate]) -> Tree:
    return {name: asdict(mean) for name, mean in found.items()}


def score_folder(folder: EvaluationFolder, known: Mapping[int, QuestionResult]) -> list[QuestionResult]:
    """Score every trajectory of a folder, except those with `known` results.

    Raises InputError if a question has no trajectory.
    """
    questions, found = folder.questions(), dict(known)
    for row in folder.rows(folder.locations().keys() - known.keys()):  # one at a time: together they are gigabytes
        position = row["group"]
        if not 0 <= position < len(questions):
            raise InputError(
                f"{folder.path / TRAJECTORIES} answers question {position:,}, but {QUESTIONS} has {len(questions):,}; "
                "restore the original files, or choose another folder with --out"
            )
        trajectory = read_trajectory(row, questions[position])
        episode = ScoredTrajectory(trajectory, score_by_em(trajectory), row.get("seconds"))
        found[position] = QuestionResult.of(episode, keep_episode=False)
    if len(found) < len(questions):
        raise InputError(
            f"{folder.path} is not finished: {len(questions) - len(found):,} of {len(questions):,} questions were not "
            f"asked yet; repeat the command that started it, with --out {folder.path}"
        )
    return [found[position] for position in range(len(questions))]


def question_fields(question: Question) -> Tree:
    return {
        "id": question.id,
        "data_source": question.data_source,
        "question": question.question,
        "golden_answers": list(question.golden_answers),
        **({} if question.answerable is None else {"answerable": question.answerable}),
    }


class _ResultRow(BaseModel):
    answer: str | None
    values: dict[str, FiniteFloat] | None
    stop: str | None = None


_QUESTION = TypeAdapter(Question)


def write_results(folder: EvaluationFolder, results: Iterable[QuestionResult]) -> Path:
    """Write one line per question, with everything a comparison needs."""
    lines = (
        {**question_fields(each.question), "answer": each.answer, "values": each.values, "stop": each.stop}
        for each in results
    )
    return folder.write(QUESTION_RESULTS, "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in lines))


def read_results(path: Path) -> list[QuestionResult]:
    """Read the question results of a finished evaluation, given its folder or a file in it."""
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a folder written by `sleuth evaluate`")
    if (path / "checkpoints").is_dir():
        raise InputError(f"{path} is a run; evaluate it first: sleuth evaluate {path} --suite ... --out FOLDER")
    folder = path if path.is_dir() else path.parent
    file = folder / QUESTION_RESULTS
    for name in (QUESTION_RESULTS, RESULTS):
        if not (folder / name).is_file():
            raise InputError(
                f"{path} is not a finished evaluation: {folder / name} is missing; repeat the `sleuth evaluate` "
                "command that started it, with --out FOLDER instead of a file"
            )
    try:
        rows = ((_QUESTION.validate_python(row), _ResultRow.model_validate(row)) for row in read_rows(file))
        return [QuestionResult(question, row.answer, row.values, row.stop) for question, row in rows]
    except ValidationError as error:
        again = f"recreate it with `sleuth evaluate --rescore {folder}`"
        raise InputError(f"{file} cannot be read ({first_problem(error)}); {again}") from error
