"""The shape of a row of trajectories: the types of what is read of it; what is not named here may be anything."""

from reprlib import repr as shortened
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sleuth.records import StopReason

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Token = Annotated[int, Field(ge=0, lt=2**32)]
Count = Annotated[int, Field(ge=0, le=10**6)]
# A reward of one's own may say true or false.
Number = Annotated[float, BeforeValidator(lambda value: float(value) if isinstance(value, bool) else value)]
Name = Annotated[str, Field(strict=False, coerce_numbers_to_str=True)]
Span = Annotated[tuple[Annotated[str, Field(strict=True)], Annotated[Count, Field(strict=True)]], Field(strict=False)]


class Broken(ValueError):
    """A row that is no trajectory; its words say what is wrong with "it"."""


class Shape(BaseModel):
    model_config = ConfigDict(strict=True)


class Scored(Shape):
    total: Number | None = None
    parts: dict[str, Number | None] | None = None


class Head(Shape):
    """What filters ask of a row."""

    question_id: Name
    data_source: str | None = None
    question: str | None = None
    group: Whole
    sample: Whole = 0
    stop: Annotated[StopReason, Field(strict=False)]
    score: Scored | None = None


class Hit(Shape):
    score: Number | None = None
    title: str | None = None
    text: str | None = None


class Turn(Shape):
    action: str | None = None
    outcome: str | None = None
    text: str | None = None
    query: str | None = None
    queries: list[str] | None = None
    urls: list[str] | None = None
    answer: str | None = None
    reason: str | None = None
    tokens: Count | None = None
    counts: list[Count] | None = None
    hits: list[Hit] | None = None
    shown: str | None = None


class Said(Shape):
    """What a search for text goes through."""

    question: str | None = None
    golden_answers: list[str] | None = None
    turns: list[Turn] | None = None


class Row(Said, Head):
    """All that is shown of a row."""

    ids: list[Token] | None = None
    origin: list[Span] | None = None
    logprobs: list[Number | None] | None = None
    weights_versions: list[Whole | None] | None = None
    failure: str | None = None
    seconds: Number | None = None


Kind = TypeVar("Kind", bound=Shape)


def fitted(kind: type[Kind], row: object) -> Kind:
    """What a row holds of a shape; one that does not fit raises `Broken`."""
    if not isinstance(row, dict):
        raise Broken(f"it is {shortened(row)} and no object")
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        raise Broken(first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """What is wrong with "it", in one line."""
    return _sentence(error.errors(include_url=False, include_context=False)[0])


def _sentence(problem: Any) -> str:
    place = ".".join(map(str, problem["loc"]))
    match problem["type"]:
        case "missing":
            return f"it has no {place}"
        case "model_type":
            return f"its {place} is {shortened(problem['input'])} and no object"
        case _:
            message = problem["msg"].replace("Input", "it", 1)
            return f"its {place} is {shortened(problem['input'])}, and {message}"
