"""The teacher's guidance of failed episodes, by hand, and the teacher of a run, which stays what it was."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sleuth.config.algorithm import AlgorithmConfig, TeacherConfig
from sleuth.config.recipe import with_absolute_paths
from sleuth.config.tree import Config
from sleuth.errors import ConfigError
from sleuth.model.packing import concatenate
from sleuth.model.policy import Policy
from sleuth.records import Group, Question, Segment, StopReason, Trajectory
from sleuth.train.credit import attach_advantages
from sleuth.train.experience import Experience, build_experiences, experience_rows
from sleuth.train.manifest import hash_inputs
from sleuth.train.ranks import ALONE
from sleuth.train.step import Learner, StepRates
from sleuth.train.teacher import guide

RETURNS = torch.tensor([1.0, 0.0, 0.05])


def experiences() -> list[Experience]:
    """Three trajectories of two sampled tokens, with old logprobs of -1 and -2."""
    segment = Segment((1, 2, 3, 4), (False, False, True, True), (-1.0, -2.0), (0, 0))
    whole = Trajectory(Question("q", "?", (), "library"), 0, 0, 1, (segment,), (), StopReason.ANSWERED)
    return [each.with_columns(old=each.columns["rollout"]) for each in build_experiences([whole] * 3, 1.0)]


def scored(asked: Sequence[Experience]) -> list[Tensor]:
    """By a teacher to whom the first token is less likely, and the second more; it is asked for the failed alone."""
    assert len(asked) == 2
    return [torch.tensor([-1.5, -1.75]), torch.tensor([-1.0, -2.0])]


def test_kl_of_failed_episodes_is_paid_at_each_token() -> None:
    settings = TeacherConfig(policy="t", coefficient=0.4)
    guided, rewards_N, metrics = guide(experiences(), RETURNS, RETURNS, settings, scored)
    # k1 is .5 and -.25 in the second episode, and nothing in the third.
    assert guided[1].columns["turn_reward"].tolist() == pytest.approx([-0.2, 0.1])
    assert [each.columns["turn_reward"].tolist() for each in (guided[0], guided[2])] == [[0, 0], [0, 0]]
    assert rewards_N.tolist() == pytest.approx([1.0, -0.1, 0.05])
    assert metrics == {"teacher/failed": pytest.approx(2 / 3), "teacher/kl": pytest.approx(0.25 / 4)}
    algorithm = AlgorithmConfig(advantage="reinforce")
    found = attach_advantages(guided, rewards_N, torch.zeros(3), algorithm, 0.0)
    # The mean of the rewards is .95 / 3; the second token does not pay for the first.
    mean = 0.95 / 3
    assert found[1].columns["advantage"].tolist() == pytest.approx([-0.1 - mean, 0.1 - mean])
    assert found[0].columns["advantage"].tolist() == pytest.approx([1.0 - mean] * 2)


def test_kl_adds_to_turn_rewards() -> None:
    settings = TeacherConfig(policy="t", coefficient=0.4)
    paid = [each.with_columns(turn_reward=torch.tensor([0.5, 0.0])) for each in experiences()]
    guided, _, _ = guide(paid, RETURNS, RETURNS, settings, scored)
    assert guided[1].columns["turn_reward"].tolist() == pytest.approx([0.3, 0.1])


def test_loss_needs_the_logprobs_of_the_teacher_in_failed_episodes() -> None:
    settings = TeacherConfig(policy="t", place="loss")
    guided, rewards_N, _ = guide(experiences(), RETURNS, RETURNS, settings, scored)
    assert rewards_N is RETURNS
    assert [each.columns["failed"].tolist() for each in guided] == [[0, 0], [1, 1], [1, 1]]
    assert guided[1].columns["teacher"].tolist() == [-1.5, -1.75]
    assert "turn_reward" not in guided[0].columns


def test_teacher_of_successful_episodes_is_not_asked() -> None:
    def refuse(_: Sequence[Experience]) -> list[Tensor]:
        raise AssertionError("nothing failed")

    settings = TeacherConfig(policy="t", reward_below=-1.0)
    guided, rewards_N, metrics = guide(experiences(), RETURNS, RETURNS, settings, refuse)
    assert metrics == {"teacher/failed": 0.0}
    assert rewards_N.tolist() == RETURNS.tolist()
    assert not any(each.columns["turn_reward"].any() for each in guided)


def tables(folder: Path, **teacher: Any) -> dict[str, Any]:
    return {
        "world": {},
        "agent": {"context_tokens": 90},
        "model": {"policy": str(folder / "model")},
        "algorithm": {"teacher": {"policy": str(folder / "teacher"), **teacher}},
        "train": {"questions": 2, "learning_rate": 1e-2},
    }


@pytest.mark.parametrize("place", ["reward", "loss"])
def test_failed_episodes_move_the_policy_towards_the_teacher(
    place: str, tmp_path: Path, policy: Callable[..., Policy], groups: Callable[..., list[Group]]
) -> None:
    """With no other reward, tokens that the teacher likes more become likelier; the teacher itself does not learn."""
    policy(0).save(tmp_path / "model")
    policy(1).save(tmp_path / "teacher")
    made = Learner.build(Config.model_validate(tables(tmp_path, place=place, coefficient=1.0)), ALONE)
    assert made.teacher is not None
    failing = groups([[0.0, 0.0, 0.0]])
    rows = experience_rows(build_experiences(failing[0].trajectories, 1.0))
    packed = concatenate(rows, range(len(rows)), torch.device("cpu"))
    with torch.no_grad():
        teacher_T, old_T = made.teacher.score(packed, 1.0)[0], made.policy.score(packed, 1.0)[0]
    found = [made.learn(failing, StepRates(1e-2), lambda _: True, recompute=True)]
    with torch.no_grad():
        change_T, preference_T = made.policy.score(packed, 1.0)[0] - old_T, teacher_T - old_T
    assert found[0]["teacher/failed"] == 1.0
    # Relative to the mean, because the reward compares episodes with each other.
    assert float(((preference_T - preference_T.mean()) * change_T).sum()) > 0
    found += [made.learn(failing, StepRates(1e-2), lambda _: True, recompute=True) for _ in range(5)]
    if place == "loss":  # which draws every token to the teacher's logprob
        assert abs(found[-1]["teacher/kl"]) < abs(found[0]["teacher/kl"])
    with torch.no_grad():
        torch.testing.assert_close(made.teacher.score(packed, 1.0)[0], teacher_T, rtol=0, atol=0)


def test_teacher_with_another_vocabulary_is_refused(tmp_path: Path, policy: Callable[..., Policy]) -> None:
    policy(0).save(tmp_path / "model")
    config = Config.model_validate(tables(tmp_path, policy="quickstart"))
    with pytest.raises(ConfigError, match=r"algorithm\.teacher\.policy = quickstart .* model\.policy"):
        Learner.build(config, ALONE)


def test_teacher_is_found_from_anywhere_and_must_not_change(
    tmp_path: Path, policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy(0).save(tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "teacher")
    monkeypatch.chdir(tmp_path)
    config = with_absolute_paths(Config.model_validate(tables(tmp_path, policy="teacher")))
    assert config.algorithm.teacher.policy == str(tmp_path / "teacher")
    assert "algorithm.teacher.policy" in hash_inputs(config)
