"""A training run in Python: its settings, metrics, trajectories, checkpoints and result."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sleuth.agent.loading import run_config
from sleuth.config.tree import Config
from sleuth.errors import InputError
from sleuth.evaluate.folder import read_score, read_trajectory
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.records import Question
from sleuth.runs.json_files import read_rows
from sleuth.runs.run import STEP
from sleuth.runs.run import Run as RunFolder


@dataclass(frozen=True, slots=True)
class Run:
    """The folder of a training run, finished or not."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Open an existing run folder."""
        return cls(RunFolder.open(Path(path)).path)

    @property
    def config(self) -> Config:
        """All settings of the run."""
        return run_config(self._folder)

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """The result of a finished run: exact match before and after training, steps, seconds; None until then."""
        return self._folder.summary()

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint, a Hugging Face model folder."""
        return self._folder.latest()

    def metrics(self) -> list[dict[str, float]]:
        """One row per recorded step, with its `step`; `pandas.DataFrame(run.metrics())` is a table."""
        return list(self._folder.metrics())

    def trajectories(self, step: int | None = None) -> list[ScoredTrajectory]:
        """Return the attempts of a step, or of all steps, with their scores.

        Retrieved passages have their id and title, but no text.
        """
        if step is not None and not self._folder.trajectories(step).is_file():
            raise InputError(f"{self.path} has no trajectories of step {step}; recorded: {self._steps()}")
        steps = self._steps() if step is None else [step]
        return [_scored(row) for each in steps for row in read_rows(self._folder.trajectories(each))]

    @property
    def _folder(self) -> RunFolder:
        return RunFolder(self.path)

    def _steps(self) -> list[int]:
        found = (STEP.fullmatch(path.stem) for path in (self.path / "trajectories").glob("step-*.jsonl"))
        return sorted(int(match[1]) for match in found if match)


def _scored(row: Mapping[str, Any]) -> ScoredTrajectory:
    answers, source = tuple(row.get("golden_answers") or ()), row.get("data_source") or ""
    question = Question(row["question_id"], row.get("question") or "", answers, source)
    return ScoredTrajectory(read_trajectory(row, question), read_score(row.get("score")), row.get("seconds"))
