"""Trajectories as JSON rows."""

import json
from dataclasses import replace

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
from sleuth.runs.trajectory import trajectory_row, unsupported_version


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


def test_newer_format_is_unsupported() -> None:
    assert unsupported_version({}) is None
    assert unsupported_version({"version": 1}) is None
    assert "format 2, and this version of Sleuth reads up to 1" in str(
        unsupported_version(json.loads('{"version": 2}'))
    )
