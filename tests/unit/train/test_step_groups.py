"""Step groups: which turns share a state, and what the tokens of a turn are credited with."""

from collections.abc import Sequence

import torch

from sleuth.records import (
    Answer,
    Group,
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
from sleuth.train.credit import RewardBatch, attach_turn_rewards, rewards_to_go
from sleuth.train.experience import build_experiences
from sleuth.train.step_groups import attach_step_advantages, observed_states

QUESTION = Question("q", "Who?", ("Ada",), "library")


def attempt(*found: str) -> Trajectory:
    """An attempt that finds these passages, a turn each ("" for a malformed turn), then answers; two tokens a turn."""
    turns = []
    for name in found:
        hits = (Hit(Passage(name, f'"{name}"\n'), 1.0),) if name else ()
        action = ToolCall.search(name) if name else Malformed("no")
        turns.append(Turn("", action, Outcome.FOUND if name else Outcome.CORRECTED, 2, hits))
    turns.append(Turn("", Answer("Ada"), Outcome.ANSWERED, 2))
    sampled = (False, True, True) * len(turns)
    count = 2 * len(turns)
    segment = Segment(tuple(range(len(sampled))), sampled, (-1.0,) * count, (0,) * count)
    return Trajectory(QUESTION, 0, 0, 1, (segment,), tuple(turns), StopReason.ANSWERED)


def credited(
    *groups: Sequence[tuple[Trajectory, Score]], weight: float = 1.0
) -> tuple[list[list[float]], dict[str, float]]:
    """The advantage of each turn, without that of the episode."""
    made = [Group(QUESTION, tuple(each for each, _ in group), tuple(score for _, score in group)) for group in groups]
    batch = RewardBatch.of(made)
    experiences = attach_turn_rewards(build_experiences(batch.trajectories, 1.0), batch)
    zeroed = [each.with_columns(advantage=torch.zeros(len(each))) for each in experiences]
    returns = rewards_to_go(experiences, batch.rewards_N)
    found, metrics = attach_step_advantages(zeroed, returns, batch.groups_N, "dr_grpo", weight)
    tokens = [each.columns["advantage"].tolist() for each in found]
    assert all(each[::2] == each[1::2] for each in tokens)  # both tokens of a turn
    return [each[::2] for each in tokens], metrics


def test_states_are_what_was_returned_so_far() -> None:
    first, second = observed_states(attempt("a", "", "b")), observed_states(attempt("a", "b"))
    assert first[:4] == [second[0], second[1], second[1], second[2]]
    assert observed_states(attempt("b", "a"))[2] != second[2]
    assert observed_states(attempt("b"))[1] != second[1]


def test_turns_after_the_same_passages_are_compared() -> None:
    right, wrong = Score(1.0), Score(0.0)
    found, metrics = credited([(attempt("a"), right), (attempt("a"), wrong), (attempt("b"), right)])
    # Before any search the mean is 2/3; after passage a it is 1/2; after passage b there is one turn.
    assert [[round(value, 4) for value in each] for each in found] == [[0.3333, 0.5], [-0.6667, -0.5], [0.3333, 0.0]]
    assert metrics == {"step_groups/size": 2.0, "step_groups/compared": 5 / 6}
    halved, _ = credited([(attempt("a"), right), (attempt("a"), wrong), (attempt("b"), right)], weight=0.5)
    assert [round(value, 4) for value in halved[1]] == [-0.3333, -0.25]


def test_turns_of_other_questions_are_another_state() -> None:
    found, _ = credited(
        [(attempt(), Score(1.0)), (attempt(), Score(0.0))], [(attempt(), Score(0.0)), (attempt(), Score(0.0))]
    )
    assert found == [[0.5], [-0.5], [0.0], [0.0]]


def test_only_what_is_still_to_come_is_compared() -> None:
    """Both first turns find a, one of them for a reward: the turns after it are equal."""
    paid, unpaid = Score(1.0, {}, (0.5, 0.0)), Score(1.0, {}, (0.0, 0.0))
    found, _ = credited([(attempt("a"), paid), (attempt("a"), unpaid)])
    assert found == [[0.25, 0.0], [-0.25, 0.0]]
