"""What clients ask for: the parameters of every path, checked; one that no path knows is refused."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sleuth.http.responses import HttpProblem
from sleuth.records import StopReason
from sleuth.view.wanted import Wanted

Name = Annotated[str, Field(max_length=2000)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Rows = Annotated[int, Field(ge=1, le=200)]


class Asked(BaseModel):
    """Parameters of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OfRun(Asked):
    run: Name


class OfEvaluation(Asked):
    evaluation: Name


class OfEither(Asked):
    """Either a run or an evaluation."""

    run: Name | None = None
    evaluation: Name | None = None

    @property
    def chosen(self) -> tuple[Literal["run", "evaluation"], str]:
        if self.run is not None and self.evaluation is None:
            return "run", self.run
        if self.evaluation is not None and self.run is None:
            return "evaluation", self.evaluation
        raise HttpProblem(400, "give either run or evaluation, with an id of /api/library")


class OfMetrics(OfRun):
    cursor: Name | None = None


class OfTrajectories(OfEither):
    step_from: Count | None = None
    step_to: Count | None = None
    question: Name | None = None
    source: Name | None = None
    reward_min: Number | None = None
    reward_max: Number | None = None
    stop: list[StopReason] = []
    group: Count | None = None
    sample: Count | None = None
    text: Name | None = None
    order: Literal["new", "old"] = "new"
    limit: Rows = 50
    cursor: Name | None = None

    @property
    def wanted(self) -> Wanted:
        return Wanted(
            step_from=self.step_from,
            step_to=self.step_to,
            question=self.question,
            source=self.source,
            reward_min=self.reward_min,
            reward_max=self.reward_max,
            stops=tuple(each.value for each in self.stop),
            group=self.group,
            sample=self.sample,
            text=self.text or None,
        )


class OfTrajectory(OfEither):
    at: Name
    tokens: bool = True


class OfGroup(OfRun):
    step: Count
    group: Count
    tokens: bool = False


class OfQuestion(OfEither):
    question: Name
    source: Name | None = None


class OfQuestions(OfEither):
    text: Name | None = None
    limit: Rows = 50
    first: Annotated[Count, Field(alias="from")] = 0


class OfComparison(Asked):
    first: Name
    second: Name
    measure: Name = "em"
    common: bool = False
    show: Literal["all", "won", "lost", "same", "unknown"] = "all"
    source: Name | None = None
    limit: Rows = 50
    start: Annotated[Count, Field(alias="from")] = 0
