"""Credit: rewards and advantages of trajectories by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from sleuth.config.algorithm import AlgorithmConfig
from sleuth.records import Group, Question, Score, Segment, StopReason, Trajectory
from sleuth.train.credit import RewardBatch, attach_advantages, attach_turn_rewards, is_trained_on, shape_rewards
from sleuth.train.experience import Experience, build_experiences

REWARDS = torch.tensor([1.0, 0.0])
ONE_GROUP = torch.tensor([7, 7])


def rows(*columns: dict[str, Sequence[float]]) -> list[Experience]:
    """Trajectories of which each has as many sampled tokens as its columns, after a prompt of two."""
    made = []
    for each in columns:
        length = len(next(iter(each.values())))
        sampled = (False, False) + (True,) * length
        segment = Segment((1, 2, *range(length)), sampled, (-1.0,) * length, (0,) * length)
        whole = Trajectory(Question("q", "?", (), "library"), 0, 0, 1, (segment,), (), StopReason.ANSWERED)
        (experience,) = build_experiences([whole], 1.0)
        made.append(experience.with_columns(**{name: torch.tensor(list(column)) for name, column in each.items()}))
    return made


def advantages(made: Sequence[Experience]) -> list[list[float]]:
    return [each.columns["advantage"].tolist() for each in made]


def algorithm(**knobs: Any) -> AlgorithmConfig:
    return AlgorithmConfig.model_validate(knobs)


def test_every_token_of_a_trajectory_has_its_advantage() -> None:
    made = rows({"old": [-1.0, -2.0]}, {"old": [-1.0]})
    found = attach_advantages(made, REWARDS, ONE_GROUP, algorithm(advantage="dr_grpo"), 0.0)
    assert advantages(found) == [[0.5, 0.5], [-0.5]]


def test_distance_is_charged_to_the_whole_trajectory() -> None:
    """By k1, 0.5 + 0.5 at the first and -1 at the second, at a weight of a half."""
    made = rows({"old": [-1.0, -2.0], "reference": [-1.5, -2.5]}, {"old": [-2.0], "reference": [-1.0]})
    settings = algorithm(advantage="dr_grpo", kl={"place": "reward", "estimator": "k1"})
    found = attach_advantages(made, REWARDS, ONE_GROUP, settings, 0.5)
    assert advantages(found) == [[0.0, 0.0], [0.0]]
    assert advantages(attach_advantages(made, REWARDS, ONE_GROUP, settings, 1.0)) == [[-0.5, -0.5], [0.5]]


def test_critic_is_surprised_token_by_token() -> None:
    """With gamma = lam = 1 the advantage is what came less what was expected, before it is whitened."""
    made = rows({"value": [0.25, 0.5, 0.75]}, {"value": [0.5]})
    found = attach_advantages(made, REWARDS, ONE_GROUP, algorithm(advantage="gae"), 0.0)
    assert [each.columns["return"].tolist() for each in found] == [[1.0, 1.0, 1.0], [0.0]]
    raw = torch.tensor([0.75, 0.5, 0.25, -0.5])
    expected = (raw - raw.mean()) / (raw.std() + 1e-6)
    assert torch.cat([each.columns["advantage"] for each in found]).tolist() == pytest.approx(expected.tolist())


def test_distance_is_charged_to_the_critic_where_it_arises() -> None:
    made = rows(
        {"value": [0.0, 0.0], "old": [-1.0, -1.0], "reference": [-2.0, -1.0]},
        {"value": [0.0], "old": [-1.0], "reference": [-1.0]},
    )
    settings = algorithm(advantage="gae", kl={"place": "reward", "estimator": "k1"})
    found = attach_advantages(made, REWARDS, ONE_GROUP, settings, 0.125)
    assert [each.columns["return"].tolist() for each in found] == [[0.875, 1.0], [0.0]]


def test_row_without_scored_tokens_earns_nothing() -> None:
    silent = rows({"value": []}, {"value": [0.5]})
    found = attach_advantages(silent, REWARDS, ONE_GROUP, algorithm(advantage="gae"), 0.0)
    assert advantages(found) == [[], [0.0]]
    assert found[1].columns["return"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("overlong", "expected"), [("keep", [1.0, 1.0]), ("filter", [1.0, 1.0]), ("shape", [1.0, 0.5])]
)
def test_long_episodes_are_punished_where_that_is_asked(
    overlong: str, expected: list[float], trajectory: Callable[..., Trajectory]
) -> None:
    knobs = {"overlong": overlong} | ({"overlong_tokens": 4} if overlong == "shape" else {})
    played = [trajectory((1,) * length, (False,) * (length - 1) + (True,)) for length in (6, 8)]
    paid = RewardBatch(played, torch.tensor([1.0, 1.0]), torch.tensor([0, 0]))
    assert shape_rewards(paid, algorithm(**knobs), 10).tolist() == expected


@pytest.mark.parametrize("stop", StopReason)
def test_filter_leaves_out_what_ran_out_of_tokens(stop: StopReason, trajectory: Callable[..., Trajectory]) -> None:
    assert is_trained_on(trajectory(stop=stop), algorithm())
    assert is_trained_on(trajectory(stop=stop), algorithm(overlong="filter")) == (stop is not StopReason.OUT_OF_TOKENS)


def two_turns(turns: tuple[float, ...], total: float, trajectory: Callable[..., Trajectory]) -> RewardBatch:
    """Two trajectories of two turns, with two and one sampled tokens; the second has no turn rewards."""
    sampled = (False, True, True, False, True)
    each = replace(trajectory(), segments=(Segment((1, 2, 3, 4, 5), sampled, (-1.0, -1.0, -1.0), (0, 0, 0)),))
    scores = (Score(total, {}, turns), Score(0.0, {}))
    return RewardBatch.of([Group(each.question, (each, each), scores)])


def experiences(batch: RewardBatch) -> list[Experience]:
    return [each.with_columns(value=torch.zeros(len(each))) for each in build_experiences(batch.trajectories, 1.0)]


def test_turn_rewards_are_paid_at_the_end_of_their_turn(trajectory: Callable[..., Trajectory]) -> None:
    batch = two_turns((0.5, 0.25), 1.0, trajectory)
    assert batch.rewards_N.tolist() == [1.75, 0.0]
    first, second = attach_turn_rewards(experiences(batch), batch)
    assert first.columns["turn_reward"].tolist() == [0.0, 0.5, 0.25]
    assert second.columns["turn_reward"].tolist() == [0.0, 0.0, 0.0]


def test_a_token_is_not_credited_for_earlier_turns(trajectory: Callable[..., Trajectory]) -> None:
    batch = two_turns((0.5, 0.25), 1.0, trajectory)
    made = attach_turn_rewards(experiences(batch), batch)
    found = attach_advantages(made, batch.rewards_N, batch.groups_N, algorithm(advantage="dr_grpo"), 0.0)
    # The mean is 0.875; the second turn of the first trajectory starts after 0.5 was paid.
    assert advantages(found) == [[0.875, 0.875, 0.375], [-0.875, -0.875, -0.875]]


def test_grpo_scales_turn_rewards_as_it_scales_the_return(trajectory: Callable[..., Trajectory]) -> None:
    batch = two_turns((0.5, 0.25), 1.0, trajectory)
    made = attach_turn_rewards(experiences(batch), batch)
    found = attach_advantages(made, batch.rewards_N, batch.groups_N, algorithm(advantage="grpo"), 0.0)
    deviation = 1.75 / 2**0.5
    assert advantages(found)[0] == pytest.approx([0.875 / deviation, 0.875 / deviation, 0.375 / deviation], rel=1e-5)


def test_the_critic_sees_turn_rewards_where_they_are_paid(trajectory: Callable[..., Trajectory]) -> None:
    batch = two_turns((0.5, 0.25), 1.0, trajectory)
    made = attach_turn_rewards(experiences(batch), batch)
    found = attach_advantages(made, batch.rewards_N, batch.groups_N, algorithm(advantage="gae"), 0.0)
    assert found[0].columns["return"].tolist() == [1.75, 1.75, 1.25]


def test_without_turn_rewards_no_column_is_added(trajectory: Callable[..., Trajectory]) -> None:
    batch = two_turns((), 1.0, trajectory)
    assert "turn_reward" not in attach_turn_rewards(experiences(batch), batch)[0].columns


TEAM = (
    Segment((1, 2, 3), (False, True, True), (-1.0,) * 2, (0,) * 2, "planner", calls=((0, 1), (3, 1))),
    Segment((4, 5, 6, 7), (False, True, True, True), (-1.0,) * 3, (0,) * 3, "writer", calls=((1, 2), (4, 1))),
)


def team(turns: tuple[float, ...], roles: Sequence[str], trajectory: Callable[..., Trajectory]) -> list[Experience]:
    """Two roles whose calls alternate; the second trajectory earns nothing. Turn 2 is that of another model."""
    each = replace(trajectory(), segments=TEAM)
    batch = RewardBatch.of([Group(each.question, (each, each), (Score(1.0, {}, turns), Score(0.0, {})))])
    made = [one.with_columns(value=torch.zeros(len(one))) for one in build_experiences([each, each], 1.0, roles=roles)]
    return attach_turn_rewards(made, batch)


TURNS = (0.5, 0.25, 8.0, 0.125, 4.0)


def test_turn_rewards_follow_the_calls_whichever_segment_holds_them(trajectory: Callable[..., Trajectory]) -> None:
    """The turn of another model is paid at the token before it, so that later tokens are not credited for it."""
    first, _ = made = team(TURNS, (), trajectory)
    assert first.columns["turn_reward"].tolist() == [0.5, 0.125, 0.0, 8.25, 4.0]
    found = attach_advantages(made, torch.tensor([13.875, 0.0]), ONE_GROUP, algorithm(advantage="dr_grpo"), 0.0)
    rest = 13.875 / 2
    expected = [rest, rest - 8.75, rest - 0.5, rest - 0.5, rest - 8.875]
    assert found[0].columns["advantage"].tolist() == pytest.approx(expected)


def test_turns_before_the_trained_role_are_not_credited_to_it(trajectory: Callable[..., Trajectory]) -> None:
    first, _ = made = team(TURNS, ("writer",), trajectory)
    assert first.columns["turn_reward"].tolist() == [0.0, 8.375, 4.0]
    assert first.earlier == 0.5
    found = attach_advantages(made, torch.tensor([13.875, 0.0]), ONE_GROUP, algorithm(advantage="dr_grpo"), 0.0)
    rest = 13.875 / 2
    assert found[0].columns["advantage"].tolist() == pytest.approx([rest - 0.5, rest - 0.5, rest - 8.875])
    valued = attach_advantages(made, torch.tensor([13.875, 0.0]), ONE_GROUP, algorithm(advantage="gae"), 0.0)
    assert valued[0].columns["return"].tolist() == pytest.approx([13.375, 13.375, 5.0])


def test_the_critic_sees_the_tokens_in_the_order_of_the_calls(trajectory: Callable[..., Trajectory]) -> None:
    """With lam = 0 the return of a token is the value of the one sampled after it."""
    each = replace(trajectory(), segments=TEAM)
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    made = [one.with_columns(value=values) for one in build_experiences([each, each], 1.0)]
    found = attach_advantages(made, REWARDS, ONE_GROUP, algorithm(advantage="gae", critic={"lam": 0.0}), 0.0)
    assert found[0].columns["return"].tolist() == [3.0, 5.0, 4.0, 2.0, 1.0]


def test_distance_of_all_segments_is_charged_once(trajectory: Callable[..., Trajectory]) -> None:
    each = replace(trajectory(), segments=TEAM)
    columns = {"old": torch.full((5,), -1.0), "reference": torch.full((5,), -1.5)}
    made = [one.with_columns(**columns) for one in build_experiences([each, each], 1.0)]
    settings = algorithm(advantage="reinforce", kl={"place": "reward"})
    found = attach_advantages([made[0], *rows({"old": [-1.0], "reference": [-1.0]})], REWARDS, ONE_GROUP, settings, 0.2)
    assert advantages(found) == [[0.25] * 5, [-0.25]]


def test_the_longest_segment_is_overlong_not_their_sum(trajectory: Callable[..., Trajectory]) -> None:
    each = replace(trajectory(), segments=TEAM)
    batch = RewardBatch([each, replace(each, segments=())], torch.tensor([1.0, 1.0]), torch.tensor([0, 0]))
    shaped = shape_rewards(batch, algorithm(overlong="shape", overlong_tokens=4), 6)
    assert shaped.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("name", ["grpo", "reinforce_pp"])
def test_turn_rewards_of_equal_returns_have_no_scale(name: str, trajectory: Callable[..., Trajectory]) -> None:
    """The second trajectory earned as much, but at its end: there is no deviation to divide by."""
    batch = two_turns((0.5, -0.5), 0.0, trajectory)
    made = attach_turn_rewards(experiences(batch), batch)
    found = attach_advantages(made, batch.rewards_N, batch.groups_N, algorithm(advantage=name), 0.0)
    assert advantages(found) == [[0.0] * 3, [0.0] * 3]
