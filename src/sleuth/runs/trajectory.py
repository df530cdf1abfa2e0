"""Trajectories as JSON rows: conversion for writing, and schemas for reading."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from reprlib import repr as shorten
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sleuth.records import (
    Answer,
    Hit,
    Malformed,
    Question,
    Score,
    Segment,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
    run_lengths,
)
from sleuth.runs.json_files import Row

FORMAT = 1  # format version of run folders, and of trajectories with one plain segment
SEGMENTS_FORMAT = 2  # format version of trajectories with `segments`, or with a reward from the agent
TITLE_LENGTH = 200  # characters kept of a passage title; a passage without a title uses the start of its text


def trajectory_row(trajectory: Trajectory, score: Score | None) -> Row:
    """Convert a trajectory to a JSON row; `score` is None if the trajectory is unusable."""
    plain = _is_plain(trajectory)
    return {
        "version": FORMAT if plain and trajectory.reward is None else SEGMENTS_FORMAT,
        "question_id": trajectory.question.id,
        "data_source": trajectory.question.data_source,
        "question": trajectory.question.question,
        "golden_answers": list(trajectory.question.golden_answers),
        "group": trajectory.group,
        "sample": trajectory.sample,
        "step": trajectory.step,
        **(_tokens_row(trajectory) if plain else {"segments": [_segment_row(each) for each in trajectory.segments]}),
        "turns": [_turn_row(turn, trajectory.question) for turn in trajectory.turns],
        "stop": trajectory.stop.value,
        "failure": trajectory.failure,
        **({} if trajectory.reward is None else {"reward": _score_row(trajectory.reward)}),
        **({} if trajectory.branch is None else {"branch": asdict(trajectory.branch)}),
        "score": None if score is None else _score_row(score),
    }


def _is_plain(trajectory: Trajectory) -> bool:
    """Whether the tokens need no `segments`: at most one segment, with tokens, origins, logprobs and versions only."""
    match trajectory.segments:
        case ():
            return True
        case (Segment(role="", calls=(), temperatures=()),):
            return True
        case _:
            return False


def _tokens_row(tokens: Trajectory | Segment) -> Row:
    return {
        "weights_versions": list(tokens.versions),
        "ids": list(tokens.ids),
        "origin": [list(run) for run in run_lengths(tokens.sampled)],
        "logprobs": list(tokens.logprobs),
    }


def _segment_row(segment: Segment) -> Row:
    calls, temperatures = [list(call) for call in segment.calls], list(segment.temperatures)
    shape = {"role": segment.role, "parent": segment.parent, "shared": segment.shared}
    return {**shape, **_tokens_row(segment), "calls": calls, "temperatures": temperatures}


def _score_row(score: Score) -> Row:
    turns = {"turns": list(score.turns)} if score.turns else {}
    return {"total": score.total, "parts": score.parts, **turns}


def _turn_row(turn: Turn, question: Question) -> Row:
    match turn.action:
        # Functions of outside agents may have the same names and other arguments.
        case ToolCall("search", {"query_list": [str(query)]}):
            row: Row = {"action": "search", "query": query}
        case ToolCall("search", {"query_list": _}) if turn.action.lookups:
            row = {"action": "search", "queries": list(turn.action.lookups)}
        case ToolCall("access", {"urls": _}) if turn.action.lookups:
            row = {"action": "access", "urls": list(turn.action.lookups)}
        case ToolCall(name, arguments):
            row = {"action": "tool", "name": name, "arguments": dict(arguments)}
        case Answer(text):
            row = {"action": "answer", "answer": text}
        case Malformed(reason):
            row = {"action": "malformed", "reason": reason}
    if len(turn.counts) > 1:
        row["counts"] = list(turn.counts)
    if turn.result is not None:
        row["result"] = turn.result
    if turn.shown is not None:
        row["shown"] = turn.shown
    if turn.segment != 0:
        row["segment"] = turn.segment
    hits = [_hit_row(hit, question) for hit in turn.hits]
    output: Row = {"tokens": turn.tokens, "text": turn.text, "formed": turn.formed}
    return {**row, "hits": hits, "outcome": turn.outcome.value, **output}


def _hit_row(hit: Hit, question: Question) -> Row:
    """Convert a hit; `gold` is omitted if the question does not name its supporting passages."""
    gold: Row = {"gold": hit.passage.id in question.supporting_ids} if question.supporting_ids else {}
    return {"id": hit.passage.id, "title": hit.passage.title[:TITLE_LENGTH], "score": hit.score, **gold}


def unsupported_version(row: Mapping[str, Any]) -> str | None:
    """Return an error message for a row in a newer format, else None; rows without a version have format 1."""
    version = row.get("version", 1)
    if isinstance(version, int) and version > SEGMENTS_FORMAT:
        supported = f"this version of Sleuth reads up to {SEGMENTS_FORMAT}"
        return f"it has trajectory format {version}, and {supported}; update Sleuth"
    return None


def segment_rows(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the segments of a row; a row without `segments` is itself the only one, if it has tokens."""
    if row.get("segments") is not None:
        return list(row["segments"])
    return [row] if row.get("ids") else []


Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenId = Annotated[int, Field(ge=0, lt=2**32)]
Count = Annotated[int, Field(ge=0, le=10**6)]
# User-defined rewards may be booleans.
Number = Annotated[float, BeforeValidator(lambda value: float(value) if isinstance(value, bool) else value)]
Name = Annotated[str, Field(strict=False, coerce_numbers_to_str=True)]
Span = Annotated[tuple[Annotated[str, Field(strict=True)], Annotated[Count, Field(strict=True)]], Field(strict=False)]

Call = Annotated[tuple[Annotated[Count, Field(strict=True)], Annotated[Count, Field(strict=True)]], Field(strict=False)]


class InvalidRow(ValueError):
    """Raised if a row is not a trajectory; the message refers to the row as "it"."""


class RowSchema(BaseModel):
    """Base class of the row schemas; undeclared fields may have any value."""

    model_config = ConfigDict(strict=True)


class ScoreRow(RowSchema):
    total: Number | None = None
    parts: dict[str, Number | None] | None = None
    turns: list[Number] | None = None


class RowHeader(RowSchema):
    """The fields that filters use."""

    question_id: Name
    data_source: str | None = None
    question: str | None = None
    group: Integer
    sample: Integer = 0
    stop: Annotated[StopReason, Field(strict=False)]
    score: ScoreRow | None = None
    segments: Sequence[RowSchema] | None = None


class HitRow(RowSchema):
    score: Number | None = None
    title: str | None = None
    text: str | None = None


class TurnRow(RowSchema):
    action: str | None = None
    outcome: str | None = None
    text: str | None = None
    query: str | None = None
    queries: list[str] | None = None
    urls: list[str] | None = None
    name: str | None = None
    arguments: dict[str, Any] | None = None
    result: str | None = None
    answer: str | None = None
    reason: str | None = None
    tokens: Count | None = None
    counts: list[Count] | None = None
    hits: list[HitRow] | None = None
    shown: str | None = None
    segment: Count | None = 0


class RowText(RowSchema):
    """The fields that text search covers."""

    question: str | None = None
    golden_answers: list[str] | None = None
    turns: list[TurnRow] | None = None


class TokensRow(RowSchema):
    """Tokens with their origins, and the logprob and version of each sampled token."""

    ids: list[TokenId] | None = None
    origin: list[Span] | None = None
    logprobs: list[Number | None] | None = None
    weights_versions: list[Integer | None] | None = None


class SegmentRow(TokensRow):
    """One token sequence of a trajectory that has several, a role or turns of its own; see `records.Segment`."""

    role: str = ""
    parent: Count | None = None
    shared: Count = 0
    calls: list[Call] = []
    temperatures: list[Number] = []


class BranchRow(RowSchema):
    """The place of a trajectory in a tree of rollouts; see `records.Branch`."""

    tree: Count
    parent: Count | None = None
    shared: Count = 0


class FullRow(TokensRow, RowText, RowHeader):
    """Every field that is displayed."""

    segments: Sequence[SegmentRow] | None = None
    reward: ScoreRow | None = None
    branch: BranchRow | None = None
    failure: str | None = None
    seconds: Number | None = None


Schema = TypeVar("Schema", bound=RowSchema)


def validate_row(schema: type[Schema], row: object) -> Schema:
    """Validate a row against a schema; raise InvalidRow if it does not fit."""
    if not isinstance(row, dict):
        raise InvalidRow(f"it is {shorten(row)}, not an object")
    try:
        return schema.model_validate(row)
    except ValidationError as error:
        raise InvalidRow(first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """Describe the first validation error in one line, referring to the row as "it"."""
    problem = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, problem["loc"]))
    match problem["type"]:
        case "missing":
            return f"it has no {place}"
        case "model_type":
            return f"its {place} is {shorten(problem['input'])}, not an object"
        case _:
            return f"its {place} is {shorten(problem['input'])}, and {problem['msg'].replace('Input', 'it', 1)}"
