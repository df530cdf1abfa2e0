"""Trajectories on the disk: a row that holds all a score is made of, and the trajectory read from it again."""

from collections.abc import Mapping
from itertools import chain, repeat
from typing import Any

from sleuth.errors import InputError
from sleuth.records import (
    Access,
    Action,
    Answer,
    Hit,
    Malformed,
    Outcome,
    Passage,
    Question,
    Score,
    Search,
    StopReason,
    Trajectory,
    Turn,
)
from sleuth.runs.trajectory import FullRow, trajectory_row, unsupported_version, validate_row

Row = Mapping[str, Any]


def written(trajectory: Trajectory, score: Score | None, seconds: float | None = None) -> dict[str, Any]:
    """The row of a trajectory with the text of what was found, without which retrieval could not be scored again."""
    kept = trajectory_row(trajectory, score) | ({} if seconds is None else {"seconds": seconds})
    for turn, entry in zip(trajectory.turns, kept["turns"], strict=True):
        for hit, found in zip(turn.hits, entry["hits"], strict=True):
            found |= {"title": hit.passage.title, "text": hit.passage.text}
    return kept


def restored(kept: Row, question: Question) -> Trajectory:
    """The trajectory of a row, as far as it is scored and counted."""
    if problem := unsupported_version(kept):
        raise InputError(f"the trajectory of the question {question.id!r} cannot be read: {problem}")
    try:
        validate_row(FullRow, kept)
        runs = (repeat(origin == "sampled", count) for origin, count in kept["origin"])
        return Trajectory(
            question=question,
            group=kept["group"],
            sample=kept["sample"],
            step=kept["step"],
            ids=tuple(kept["ids"]),
            sampled=tuple(chain.from_iterable(runs)),
            logprobs=tuple(kept["logprobs"]),
            versions=tuple(kept["weights_versions"]),
            turns=tuple(_turn(turn) for turn in kept["turns"]),
            stop=StopReason(kept["stop"]),
            failure=kept["failure"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the trajectory of the question {question.id!r} cannot be read ({error!r})") from error


def _turn(kept: Row) -> Turn:
    hits = tuple(Hit(_passage(hit), hit["score"]) for hit in kept["hits"])
    outcome = Outcome(kept["outcome"])
    # The row of one query does not say what is plain: all hits are its own.
    counts = tuple(kept.get("counts") or ([len(hits)] if outcome is Outcome.FOUND else ()))
    return Turn(kept["text"], _action(kept), outcome, kept["tokens"], hits, counts, kept["formed"], kept.get("shown"))


def _action(kept: Row) -> Action:
    match kept["action"]:
        case "search":
            return Search(*kept.get("queries", [kept.get("query")]))
        case "access":
            return Access(*kept["urls"])
        case "answer":
            return Answer(kept["answer"])
        case _:
            return Malformed(kept["reason"])


def _passage(hit: Row) -> Passage:
    return Passage(hit["id"], f'"{hit["title"]}"\n{hit["text"]}')
