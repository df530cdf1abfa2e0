"""Rollouts: which questions a step asks, and which of their groups it learns from."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sleuth.config.reward import RewardConfig
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.records import Search, StopReason, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.train.assemble import Parts
from sleuth.train.ranks import Alone
from sleuth.train.rollout import Harvest, group

Item = TypeVar("Item")
Making = Callable[..., Parts]

# Samples of the questions with an odd number differ, those of the others are all worth the same.
JUDGE = """
def odd(question, trajectory):
    return len(set(trajectory.ids)) / len(trajectory.ids) if int(question.id[1:]) % 2 else 0.5
"""


@pytest.fixture
def picky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "judge_of_odd_questions.py").write_text(JUDGE)
    monkeypatch.syspath_prepend(tmp_path)
    return "import:judge_of_odd_questions.odd"


def harvested(made: Parts, step: int = 0, asked: int = 0) -> Harvest:
    with asyncio.Runner() as runner:
        return runner.run(made.asker.harvest(step, asked))


def settings(**train: Any) -> dict[str, Any]:
    return {"questions": 2, "samples": 3, "steps": 1, **train}


def ids(harvest: Harvest, kept: bool = False) -> list[str]:
    return [each.question.id for each in (harvest.kept if kept else harvest.groups)]


def test_step_asks_the_next_questions_of_the_stream(parts: Making, tmp_path: Path, picky: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": picky}, train=settings())
    harvest = harvested(made, step=3, asked=4)
    assert ids(harvest) == ids(harvest, kept=True) == [each.id for each in made.asker.stream.take(4, 2)]
    assert (harvest.asked, harvest.rounds) == (6, 1)
    assert [(each.group, each.sample) for each in harvest.trajectories] == [(g, s) for g in (0, 1) for s in range(3)]
    assert {each.step for each in harvest.trajectories} == {4}
    assert harvest.metrics()["group/dropped"] == 0


@dataclass(frozen=True)
class Second(Alone):
    """The second of two ranks, of which the first brings nothing."""

    rank: int = 1
    world: int = 2

    def gather(self, mine: Sequence[Item], what: str) -> list[list[Item]]:
        # The counts of both are added up: each brings some.
        return [list(mine) if what == "the counts of searches" else [], list(mine)]


def test_a_rank_asks_its_share_of_the_questions(parts: Making, tmp_path: Path, picky: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": picky}, train=settings(questions=4))
    with asyncio.Runner() as runner:
        harvest = runner.run(replace(made.asker, ranks=Second()).harvest(0, 0))
    assert [(each.group, each.sample) for each in harvest.trajectories] == [(g, s) for g in (1, 3) for s in range(3)]


def test_groups_without_spread_are_replaced_by_the_next_questions(parts: Making, tmp_path: Path, picky: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": picky}, train=settings(resample=3))
    harvest = harvested(made)
    asked = [each.id for each in made.asker.stream.take(0, harvest.asked)]
    assert ids(harvest) == asked
    assert ids(harvest, kept=True) == [each for each in asked if int(each[1:]) % 2]
    assert len(harvest.kept) == 2
    assert [each.group for each in harvest.trajectories] == [place for place in range(len(asked)) for _ in range(3)]
    assert 1 < harvest.rounds <= 4
    assert harvest.metrics()["group/dropped"] == len(asked) - 2
    # What was asked in vain is recorded too, with its score.
    assert len(harvest.scored()) == 3 * len(asked)
    assert all(score is not None for _, score in harvest.scored())


def test_replacing_ends_after_so_many_rounds(parts: Making, tmp_path: Path) -> None:
    """No answer of this policy is right: no group has spread, however many are asked."""
    made = parts(tmp_path / "run", train=settings(resample=2))
    harvest = harvested(made)
    assert (harvest.rounds, harvest.asked, harvest.kept) == (3, 6, [])
    assert harvest.metrics()["group/dropped"] == 6
    assert harvest.metrics()["group/with_spread"] == 0


def test_same_place_gives_the_same_episodes(parts: Making, tmp_path: Path, picky: str) -> None:
    """What a run that was resumed asks is what it would have asked."""
    first, second = (
        parts(tmp_path / name, reward={"answer": picky}, train=settings(resample=1)) for name in ("a", "b")
    )
    harvested(first)
    assert harvested(first, 1, 3).trajectories == harvested(second, 1, 3).trajectories
    assert harvested(first, 1, 3).trajectories != harvested(first, 2, 3).trajectories


def test_what_was_spent_is_that_of_the_step(parts: Making, tmp_path: Path, picky: str) -> None:
    """Asked again, the prompts of the same questions are known to the engine."""
    made = parts(tmp_path / "run", reward={"answer": picky}, train=settings())
    once, again = (harvested(made) for _ in range(2))
    for each in (once, again):
        turns = [turn for trajectory in each.trajectories for turn in trajectory.turns]
        assert each.spent["search/count"] == sum(isinstance(turn.action, Search) for turn in turns)
        assert each.spent["engine/preempted"] == 0
    assert 0 < once.spent["engine/reused"] < again.spent["engine/reused"] < 1


def test_unusable_samples_are_recorded_without_a_score(trajectory: Callable[..., Trajectory]) -> None:
    lost, kept = trajectory(stop=StopReason.SEARCH_UNAVAILABLE), trajectory()
    groups = group([ScoredTrajectory(*Rubric(RewardConfig()).scored(each)) for each in (lost, kept)])
    harvest = Harvest([lost, kept], groups, groups, 1, 1, 0.0, {})
    assert [(each is lost, score is None) for each, score in harvest.scored()] == [(True, True), (False, False)]
    assert harvest.metrics()["stop/search_unavailable"] == 0.5
    assert sum(harvest.metrics()[f"stop/{reason.value}"] for reason in StopReason) == 1.0


@pytest.mark.parametrize(("advantage", "kept"), [("grpo", [1]), ("reinforce", [0, 1])])
def test_a_group_with_one_usable_sample_teaches_only_without_groups(
    advantage: str, kept: list[int], parts: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judge_of_first_samples.py").write_text(
        "def one(question, trajectory):\n    return 1 / (trajectory.group or trajectory.sample == 0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    chosen = {"reward": {"answer": "import:judge_of_first_samples.one"}, "algorithm": {"advantage": advantage}}
    harvest = harvested(parts(tmp_path / "run", train=settings(), **chosen))
    assert [len(each.trajectories) for each in harvest.groups] == [1, 3]
    assert [harvest.groups.index(each) for each in harvest.kept] == kept
    assert harvest.metrics()["group/dropped"] == 2 - len(kept)


def test_another_seed_samples_other_episodes_of_the_same_questions(parts: Making, tmp_path: Path) -> None:
    made = parts(tmp_path / "run", train=settings())
    seeded = made.config.model_copy(update={"train": made.config.train.model_copy(update={"seed": 7})})
    with asyncio.Runner() as runner:
        once, again, other = (
            runner.run(replace(made.asker, config=config).harvest(0, 0))
            for config in (made.config, made.config, seeded)
        )
    assert ids(once) == ids(again) == ids(other)
    sampled = [[each.ids for each in harvest.trajectories] for harvest in (once, again, other)]
    assert sampled[0] == sampled[1] != sampled[2]
