"""Metrics of segments and roles."""

from collections.abc import Callable
from dataclasses import replace

from sleuth.records import Answer, Group, Outcome, Score, Segment, Trajectory, Turn
from sleuth.train.metrics import abstention_metrics, episode_metrics, segment_metrics

PARTS = dict.fromkeys(("em", "f1", "format", "searches", "retrieval_hit"), 0.0)


def test_plain_trajectories_have_no_metrics_of_segments(trajectory: Callable[..., Trajectory]) -> None:
    assert segment_metrics([trajectory(), replace(trajectory(), segments=())]) == {}
    assert segment_metrics([]) == {}


def test_segments_forks_and_tokens_by_role_are_means_over_trajectories(trajectory: Callable[..., Trajectory]) -> None:
    plain = trajectory()
    fork = Segment((5, 6, 8), (False, False, True), (-1.0,), (0,), "writer", parent=0, shared=2)
    forked = replace(plain, segments=(*plain.segments, fork, replace(fork, role="")))
    expected = {
        "segment/count": 2.0,
        "segment/forks": 0.5,
        "role/policy/tokens": 2.5,
        "role/writer/tokens": 0.5,
    }
    assert segment_metrics([plain, forked]) == expected
    every = episode_metrics([Group(plain.question, (plain, forked), (Score(0.0, PARTS), Score(1.0, PARTS)))])
    assert {name: every[name] for name in expected} == expected
    assert every["episode/tokens"] == 3.0


def test_abstentions_are_counted(trajectory: Callable[..., Trajectory]) -> None:
    def answering(text: str, answerable: bool | None) -> Trajectory:
        made = trajectory()
        turn = Turn(text, Answer(text), Outcome.ANSWERED, 1)
        return replace(made, turns=(turn,), question=replace(made.question, answerable=answerable))

    said = [("I don't know", False), ("Ada", False), ("Unknown", None), ("Ada", None)]
    every = [answering(text, answerable) for text, answerable in said]
    assert abstention_metrics(every) == {"episode/abstained": 0.5, "episode/abstained_unanswerable": 0.5}
    assert abstention_metrics(every[2:]) == {"episode/abstained": 0.5}
    assert abstention_metrics(every[3:]) == {"episode/abstained": 0.0}
