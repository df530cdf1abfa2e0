"""Experiences: which tokens of a trajectory train, in which rows, and in which order they were sampled."""

from collections.abc import Sequence

import pytest

from sleuth.records import Question, Segment, StopReason, Trajectory
from sleuth.train.experience import Experience, build_experiences, experience_rows


def segment(ids: Sequence[int], sampled: str, role: str = "", **more: object) -> Segment:
    """A segment whose sampled tokens are marked with x; the logprob of a token is its negative id."""
    origin = tuple(mark == "x" for mark in sampled)
    assert len(origin) == len(ids)
    logprobs = tuple(-float(token) for token, own in zip(ids, origin, strict=True) if own)
    return Segment(tuple(ids), origin, logprobs, (0,) * len(logprobs), role, **more)  # type: ignore[arg-type]


def experience(*segments: Segment, **settings: object) -> Experience:
    whole = Trajectory(Question("q", "?", (), "test"), 0, 0, 1, segments, (), StopReason.ANSWERED)
    (found,) = build_experiences([whole], 1.0, **settings)  # type: ignore[arg-type]
    return found


def scored(found: Experience) -> list[tuple[list[int], list[int]]]:
    """The ids of each row, and those of its scored tokens."""
    return [(row.ids_L.tolist(), row.ids_L[row.positions_S].tolist()) for row in found.rows]


def test_one_segment_is_one_row_of_all_its_tokens() -> None:
    found = experience(segment([1, 2, 3, 4, 5, 6], "..xx.."))
    assert scored(found) == [([1, 2, 3, 4, 5, 6], [3, 4])]
    assert found.columns["rollout"].tolist() == [-3, -4]
    assert (found.turn_S.tolist(), found.trained) == ([0, 0], None)


def test_each_sampled_token_trains_once() -> None:
    """What a fork shares with its parent is given there; rows end at the last scored token."""
    first = segment([1, 2, 3, 4, 5, 9], "..xxx.")
    fork = segment([1, 2, 3, 4, 7, 8], "....xx", parent=0, shared=4)
    found = experience(first, fork)
    assert sorted(scored(found)) == [([1, 2, 3, 4, 5], [3, 4, 5]), ([1, 2, 3, 4, 7, 8], [7, 8])]
    assert found.columns["rollout"].tolist() == [-3, -4, -5, -7, -8]
    assert sorted(place for each in found.places for place in each.tolist()) == list(range(5))


def test_prefixes_are_scored_in_the_row_of_the_longest() -> None:
    short, long = segment([1, 2, 3], ".xx"), segment([1, 2, 3, 4, 5, 6], "...xx.", parent=0, shared=3)
    found = experience(short, segment([1, 8], ".x"), long)
    assert scored(found) == [([1, 2, 3, 4, 5], [2, 3, 4, 5]), ([1, 8], [8])]
    assert [each.tolist() for each in found.places] == [[0, 1, 3, 4], [2]]
    assert found.join([each * 10.0 for each in found.places]).tolist() == [0, 10, 20, 30, 40]


def test_equal_samples_of_one_prompt_both_train() -> None:
    found = experience(segment([1, 2, 3], "..x"), segment([1, 2, 3], "..x"))
    assert scored(found) == [([1, 2, 3], [3, 3])]


def test_rows_have_the_columns_of_their_tokens_and_the_number_of_their_trajectory() -> None:
    forked = experience(segment([1, 2, 3], ".xx"), segment([1, 4], ".x"))
    rows = experience_rows([experience(segment([5, 6], ".x")), forked])
    assert [row.trajectory for row in rows] == [0, 1, 1]
    assert [row.columns["rollout"].tolist() for row in rows] == [[-6], [-2, -3], [-4]]


@pytest.mark.parametrize(
    ("roles", "trained", "tokens"),
    [((), None, [2, 3, 5, 7]), (("writer",), (False, False, True, True), [5, 7]), (("nobody",), (False,) * 4, [])],
)
def test_only_the_roles_that_train_have_rows(
    roles: tuple[str, ...], trained: tuple[bool, ...] | None, tokens: list[int]
) -> None:
    plan, first, second = (
        segment([1, 2, 3], ".xx", "planner"),
        segment([4, 5], ".x", "writer"),
        segment([6, 7], ".x", "writer"),
    )
    found = experience(plan, first, second, roles=roles)
    assert sorted(token for _, ids in scored(found) for token in ids) == tokens
    assert (len(found), found.trained) == (len(tokens), trained)


def test_turns_are_those_of_the_calls_whichever_segment_holds_them() -> None:
    main = segment([1, 2, 3, 4, 5], ".xx.x", calls=((0, 2), (2, 1)))
    helper = segment([6, 7, 8], ".xx", calls=((1, 1), (3, 1)))
    found = experience(main, helper)
    assert found.turn_S.tolist() == [0, 0, 2, 1, 3]
    assert found.columns["rollout"][found.call_order].tolist() == [-2, -3, -7, -5, -8]


def test_without_calls_each_run_is_the_next_turn() -> None:
    found = experience(segment([1, 2, 3, 4], ".x.x"), segment([6], "."), segment([5, 6], ".x"))
    assert found.turn_S.tolist() == [0, 1, 2]


def test_retrieved_text_has_the_turn_before_it() -> None:
    found = experience(segment([1, 2, 3, 4, 5], "..x.x", calls=((3, 1), (4, 1))), sampled_only=False)
    assert scored(found) == [([1, 2, 3, 4, 5], [3, 4, 5])]
    assert found.turn_S.tolist() == [3, 3, 4]


def test_temperatures_are_a_column_if_some_differ() -> None:
    """Of every trajectory of the batch: packs have the same columns."""
    warm, usual = segment([1, 2, 3], ".xx", temperatures=(0.5, 1.0)), segment([1, 2], ".x", temperatures=(1.0,))
    assert "temperature" not in experience(usual).columns
    question = Question("q", "?", (), "test")
    each = [Trajectory(question, 0, 0, 1, (one,), (), StopReason.ANSWERED) for one in (warm, usual, segment([1], "."))]
    found = build_experiences(each, 1.0)
    assert [one.columns["temperature"].tolist() for one in found] == [[0.5, 1.0], [1.0], []]


def test_trajectory_without_segments_has_no_rows() -> None:
    found = experience()
    assert (len(found), found.rows, found.join([]).tolist()) == (0, (), [])
