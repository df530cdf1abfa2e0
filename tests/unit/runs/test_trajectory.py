"""Trajectories as JSON rows."""

import json
from dataclasses import replace
from typing import Any

import pytest

from sleuth.records import (
    Answer,
    Hit,
    Malformed,
    Outcome,
    Passage,
    Question,
    Score,
    Segment,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)
from sleuth.runs.trajectory import FullRow, InvalidRow, trajectory_row, unsupported_version, validate_row


def trajectory(supporting_ids: tuple[str, ...] = ("p1",), stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    hits = (Hit(Passage("p1", '"A"\ntext'), 2.5), Hit(Passage("p2", '"B"\ntext'), 1.0))
    return Trajectory(
        question=Question("q1", "Who?", ("Ada",), "world", supporting_ids=supporting_ids),
        group=3,
        sample=1,
        step=5,
        segments=(Segment((7, 8, 9, 10), (False, True, True, False), (-0.5, -0.25), (4, 4)),),
        turns=(
            Turn("<search>A</search>", ToolCall.search("A"), Outcome.FOUND, 2, hits),
            Turn("hm", Malformed("no action"), Outcome.CORRECTED, 1),
            Turn("<answer>Ada</answer>", Answer("Ada"), Outcome.ANSWERED, 3),
        ),
        stop=stop,
    )


def test_row_has_the_documented_fields() -> None:
    assert trajectory_row(trajectory(), Score(1.0, {"em": 1.0})) == {
        "version": 1,
        "question_id": "q1",
        "data_source": "world",
        "question": "Who?",
        "golden_answers": ["Ada"],
        "group": 3,
        "sample": 1,
        "step": 5,
        "weights_versions": [4, 4],
        "ids": [7, 8, 9, 10],
        "origin": [["given", 1], ["sampled", 2], ["given", 1]],
        "logprobs": [-0.5, -0.25],
        "turns": [
            {
                "action": "search",
                "query": "A",
                "hits": [
                    {"id": "p1", "title": "A", "score": 2.5, "gold": True},
                    {"id": "p2", "title": "B", "score": 1.0, "gold": False},
                ],
                "outcome": "found",
                "tokens": 2,
                "text": "<search>A</search>",
                "formed": True,
            },
            {
                "action": "malformed",
                "reason": "no action",
                "hits": [],
                "outcome": "corrected",
                "tokens": 1,
                "text": "hm",
                "formed": True,
            },
            {
                "action": "answer",
                "answer": "Ada",
                "hits": [],
                "outcome": "answered",
                "tokens": 3,
                "text": "<answer>Ada</answer>",
                "formed": True,
            },
        ],
        "stop": "answered",
        "failure": None,
        "score": {"total": 1.0, "parts": {"em": 1.0}},
    }


def test_row_with_several_queries_and_pages() -> None:
    """A single query keeps its own key, for older readers."""
    oslo, rome = (Hit(Passage(name, name), 1.0) for name in ("oslo", "rome"))
    turns = (
        Turn("x", ToolCall.search("a", "b", "c"), Outcome.FOUND, 2, (oslo, rome), (0, 1, 1), formed=False),
        Turn("y", ToolCall.access("https://oslo.no"), Outcome.FOUND, 2, (oslo,), (1,), shown="os"),
    )
    first, second = trajectory_row(replace(trajectory(), turns=turns), None)["turns"]
    assert (first["action"], first["queries"], first["counts"]) == ("search", ["a", "b", "c"], [0, 1, 1])
    assert "query" not in first
    assert [hit["id"] for hit in first["hits"]] == ["oslo", "rome"]
    assert (first["formed"], second["formed"]) == (False, True)
    assert (second["action"], second["urls"], "counts" in second) == ("access", ["https://oslo.no"], False)
    assert ("shown" in first, second["shown"]) == (False, "os")


def test_unusable_trajectory_has_no_score_and_unknown_gold_is_left_out() -> None:
    unusable = trajectory_row(trajectory(supporting_ids=(), stop=StopReason.SEARCH_UNAVAILABLE), None)
    assert unusable["score"] is None
    assert [sorted(hit) for hit in unusable["turns"][0]["hits"]] == [["id", "score", "title"]] * 2


def test_row_with_segments_has_no_tokens_of_its_own() -> None:
    plain = trajectory()
    child = Segment((7, 8, 9, 11), (False, False, False, True), (-1.5,), (5,), "writer", 0, 3, ((2, 1),), (0.5,))
    other = replace(plain.turns[2], segment=None)
    several = replace(
        plain, segments=(*plain.segments, child), turns=(*plain.turns[:2], replace(plain.turns[2], segment=1), other)
    )
    row = json.loads(json.dumps(trajectory_row(several, None)))
    assert row["version"] == 2
    assert not row.keys() & {"ids", "origin", "logprobs", "weights_versions", "reward"}
    assert row["segments"][1] == {
        "role": "writer",
        "parent": 0,
        "shared": 3,
        "weights_versions": [5],
        "ids": [7, 8, 9, 11],
        "origin": [["given", 3], ["sampled", 1]],
        "logprobs": [-1.5],
        "calls": [[2, 1]],
        "temperatures": [0.5],
    }
    assert [turn.get("segment", 0) for turn in row["turns"]] == [0, 0, 1, None]
    read = validate_row(FullRow, row)
    assert read.segments is not None
    assert [(each.parent, each.shared, each.calls) for each in read.segments] == [(None, 0, []), (0, 3, [(2, 1)])]


@pytest.mark.parametrize("change", [{"role": "writer"}, {"calls": ((0, 2),)}, {"temperatures": (0.5, 0.5)}])
def test_single_segment_is_written_whole_if_tokens_do_not_say_all(change: dict[str, Any]) -> None:
    (segment,) = trajectory().segments
    row = trajectory_row(replace(trajectory(), segments=(replace(segment, **change),)), None)
    assert (row["version"], len(row["segments"]), "ids" in row) == (2, 1, False)


def test_reward_of_the_agent_is_kept() -> None:
    row = trajectory_row(replace(trajectory(), reward=Score(0.5, {"style": 1.0}, (0.1, 0.2, 0.3))), Score(0.5))
    assert (row["version"], row["ids"]) == (2, [7, 8, 9, 10])
    assert row["reward"] == {"total": 0.5, "parts": {"style": 1.0}, "turns": [0.1, 0.2, 0.3]}


@pytest.mark.parametrize("broken", [[1], [{"calls": [[0]]}], [{"shared": -1}], {"ids": []}])
def test_broken_segments_are_invalid(broken: object) -> None:
    row = trajectory_row(trajectory(), None) | {"segments": broken}
    with pytest.raises(InvalidRow, match="segments"):
        validate_row(FullRow, row)


def test_newer_format_is_unsupported() -> None:
    assert unsupported_version({}) is None
    assert unsupported_version({"version": 1}) is None
    assert unsupported_version({"version": 2}) is None
    assert "format 3, and this version of Sleuth reads up to 2" in str(
        unsupported_version(json.loads('{"version": 3}'))
    )
