"""Marks: what was measured of each question, the unit that tables, comparisons and intervals are made of."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from sleuth.errors import InputError
from sleuth.evaluate.folder import MARKS, QUESTIONS, RESULTS, TRAJECTORIES, Folder
from sleuth.evaluate.saved import restored
from sleuth.records import Question, StopReason, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.runs.json_files import read_rows
from sleuth.runs.trajectory import first_problem


def _sampled(trajectory: Trajectory) -> float | None:
    """Tokens sampled; of an episode without ids those that the server counted, None where it counted none."""
    if trajectory.ids or not trajectory.turns:
        return float(sum(trajectory.sampled))
    return float(sum(turn.tokens for turn in trajectory.turns)) or None


# What is measured of a usable trajectory besides the parts of its score; None where it cannot be.
COUNTED: dict[str, Callable[[Trajectory], float | None]] = {
    "tokens": _sampled,
    "tokens_all": lambda trajectory: float(len(trajectory.ids)) or None,
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A question, its answer and what was measured of it; None where a failure that was not the model's left nothing.

    A measure that could not be taken, such as the verdict of a judge that did not answer, is not among the values.
    `stop` is why the episode ended.
    """

    question: Question
    answer: str | None
    values: Mapping[str, FiniteFloat] | None
    stop: str | None = None

    @property
    def unfit(self) -> bool:
        """Whether the model was never asked, since the prompt filled the whole context."""
        return self.stop == StopReason.OUT_OF_TOKENS and self.values is not None and self.values.get("tokens") == 0

    @property
    def key(self) -> tuple[str, str]:
        return self.question.data_source, self.question.id


_MARK = TypeAdapter(Mark)


def measured(folder: Folder, rubric: Rubric) -> list[Mark]:
    """The marks of every question of a folder, scored from its trajectories; one that was never asked is refused."""
    questions = folder.questions()
    # Row by row, since all of them together are gigabytes.
    found = {row["group"]: _mark(_asked(questions, row["group"], folder), row, rubric) for row in folder.rows()}
    if len(found) < len(questions):
        raise InputError(
            f"{folder.path} is not finished: {len(questions) - len(found):,} of its {len(questions):,} questions were "
            f"never asked; give the command that began it again, with --out {folder.path}"
        )
    return [found[place] for place in range(len(questions))]


def _asked(questions: Sequence[Question], group: int, folder: Folder) -> Question:
    if not 0 <= group < len(questions):
        raise InputError(
            f"{folder.path / TRAJECTORIES} answers question {group:,}, and {QUESTIONS} has {len(questions):,}; "
            "put the file back that is not the one written, or choose another folder with --out"
        )
    return questions[group]


def _mark(question: Question, row: Mapping[str, Any], rubric: Rubric) -> Mark:
    trajectory = restored(row, question)
    if not trajectory.stop.usable:
        return Mark(question, None, None, trajectory.stop.value)
    counted = {name: count for name, of in COUNTED.items() if (count := of(trajectory)) is not None}
    values = {**rubric.score(question, trajectory).parts, **counted}
    if row.get("seconds") is not None:
        values["seconds"] = row["seconds"]
    return Mark(question, trajectory.answer, values, trajectory.stop.value)


def write(folder: Folder, marks: Iterable[Mark]) -> Path:
    """Writes the marks, a line each, with all that a comparison shows."""
    lines = (
        {
            "id": mark.question.id,
            "data_source": mark.question.data_source,
            "question": mark.question.question,
            "golden_answers": list(mark.question.golden_answers),
            "answer": mark.answer,
            "values": mark.values,
            "stop": mark.stop,
        }
        for mark in marks
    )
    return folder.write(MARKS, "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in lines))


def read(path: Path) -> list[Mark]:
    """The marks of an evaluation: its folder, or the results file in it."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give the folder that sleuth evaluate wrote")
    if (path / "checkpoints").is_dir():
        raise InputError(f"{path} is a run; evaluate it first: sleuth evaluate {path} --suite ... --out FOLDER")
    folder = path if path.is_dir() else path.parent
    file = folder / MARKS
    for name in (MARKS, RESULTS):
        if not (folder / name).is_file():
            raise InputError(
                f"{path} is no finished evaluation: there is no {name} in it or beside it; finish a folder by giving "
                "the sleuth evaluate command that began it again, and make one with --out FOLDER instead of a file"
            )
    try:
        return [_MARK.validate_python({**row, "question": row}) for row in read_rows(file)]
    except ValidationError as error:
        again = f"make it again with: sleuth evaluate --rescore {folder}"
        raise InputError(f"{file} cannot be read ({first_problem(error)}); {again}") from error


def by_set(marks: Sequence[Mark]) -> dict[str, list[Mark]]:
    """The marks of each set, in the order in which the sets first come."""
    sets: dict[str, list[Mark]] = {}
    for mark in marks:
        sets.setdefault(mark.question.data_source, []).append(mark)
    return sets


def values(marks: Iterable[Mark], measure: str) -> list[float]:
    """What was measured, of the questions of which it was."""
    return [mark.values[measure] for mark in marks if mark.values is not None and measure in mark.values]
