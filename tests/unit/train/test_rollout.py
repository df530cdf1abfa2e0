"""Rollouts: which questions a step asks, and which of their groups it learns from."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sleuth.config.reward import RewardConfig
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.records import StopReason, ToolCall, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.train.parts import Parts
from sleuth.train.ranks import Alone
from sleuth.train.rollout import RolloutBatch, group_by_question
from sleuth.train.step import StepRates

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


def collected(made: Parts, step: int = 0, asked: int = 0) -> RolloutBatch:
    with asyncio.Runner() as runner:
        return runner.run(made.sampler.collect(step, asked))


def settings(**train: Any) -> dict[str, Any]:
    return {"questions": 2, "samples": 3, "steps": 1, **train}


def ids(batch: RolloutBatch, kept: bool = False) -> list[str]:
    return [each.question.id for each in (batch.kept if kept else batch.groups)]


def test_step_asks_the_next_questions_of_the_stream(parts: Making, tmp_path: Path, picky: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": picky}, train=settings())
    batch = collected(made, step=3, asked=4)
    assert ids(batch) == ids(batch, kept=True) == [each.id for each in made.sampler.stream.take(4, 2)]
    assert (batch.questions_drawn, batch.rounds) == (6, 1)
    assert [(each.group, each.sample) for each in batch.trajectories] == [(g, s) for g in (0, 1) for s in range(3)]
    assert {each.step for each in batch.trajectories} == {4}
    assert batch.metrics()["group/dropped"] == 0


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
        batch = runner.run(replace(made.sampler, ranks=Second()).collect(0, 0))
    assert [(each.group, each.sample) for each in batch.trajectories] == [(g, s) for g in (1, 3) for s in range(3)]


def test_groups_without_spread_are_replaced_by_the_next_questions(parts: Making, tmp_path: Path, picky: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": picky}, train=settings(resample=3))
    batch = collected(made)
    asked = [each.id for each in made.sampler.stream.take(0, batch.questions_drawn)]
    assert ids(batch) == asked
    assert ids(batch, kept=True) == [each for each in asked if int(each[1:]) % 2]
    assert len(batch.kept) == 2
    assert [each.group for each in batch.trajectories] == [place for place in range(len(asked)) for _ in range(3)]
    assert 1 < batch.rounds <= 4
    assert batch.metrics()["group/dropped"] == len(asked) - 2
    # What was asked in vain is recorded too, with its score.
    assert len(batch.scored()) == 3 * len(asked)
    assert all(score is not None for _, score in batch.scored())


def test_replacing_ends_after_so_many_rounds(parts: Making, tmp_path: Path) -> None:
    """No answer of this policy is right: no group has spread, however many are asked."""
    made = parts(tmp_path / "run", train=settings(resample=2))
    batch = collected(made)
    assert (batch.rounds, batch.questions_drawn, batch.kept) == (3, 6, [])
    assert batch.metrics()["group/dropped"] == 6
    assert batch.metrics()["group/with_spread"] == 0


def test_same_place_gives_the_same_episodes(parts: Making, tmp_path: Path, picky: str) -> None:
    """What a run that was resumed asks is what it would have asked."""
    first, second = (
        parts(tmp_path / name, reward={"answer": picky}, train=settings(resample=1)) for name in ("a", "b")
    )
    collected(first)
    assert collected(first, 1, 3).trajectories == collected(second, 1, 3).trajectories
    assert collected(first, 1, 3).trajectories != collected(first, 2, 3).trajectories


def test_what_was_spent_is_that_of_the_step(parts: Making, tmp_path: Path, picky: str) -> None:
    """Asked again, the prompts of the same questions are known to the engine."""
    made = parts(tmp_path / "run", reward={"answer": picky}, train=settings())
    once, again = (collected(made) for _ in range(2))
    for each in (once, again):
        turns = [turn for trajectory in each.trajectories for turn in trajectory.turns]
        assert each.cost["search/count"] == sum(isinstance(turn.action, ToolCall) for turn in turns)
        assert each.cost["engine/preempted"] == 0
    assert 0 < once.cost["engine/reused"] < again.cost["engine/reused"] < 1


def test_unusable_samples_are_recorded_without_a_score(trajectory: Callable[..., Trajectory]) -> None:
    lost, kept = trajectory(stop=StopReason.SEARCH_UNAVAILABLE), trajectory()
    scored = asyncio.run(Rubric(RewardConfig()).score_all((lost, kept)))
    groups = group_by_question([ScoredTrajectory(*each) for each in scored])
    batch = RolloutBatch([lost, kept], groups, groups, 1, 1, 0.0, {})
    assert [(each is lost, score is None) for each, score in batch.scored()] == [(True, True), (False, False)]
    assert batch.metrics()["stop/search_unavailable"] == 0.5
    assert sum(batch.metrics()[f"stop/{reason.value}"] for reason in StopReason) == 1.0


@pytest.mark.parametrize(("advantage", "kept"), [("grpo", [1]), ("reinforce", [0, 1])])
def test_a_group_with_one_usable_sample_teaches_only_without_groups(
    advantage: str, kept: list[int], parts: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judge_of_first_samples.py").write_text(
        "def one(question, trajectory):\n    return 1 / (trajectory.group or trajectory.sample == 0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    chosen = {"reward": {"answer": "import:judge_of_first_samples.one"}, "algorithm": {"advantage": advantage}}
    batch = collected(parts(tmp_path / "run", train=settings(), **chosen))
    assert [len(each.trajectories) for each in batch.groups] == [1, 3]
    assert [batch.groups.index(each) for each in batch.kept] == kept
    assert batch.metrics()["group/dropped"] == 2 - len(kept)


def test_another_seed_samples_other_episodes_of_the_same_questions(parts: Making, tmp_path: Path) -> None:
    made = parts(tmp_path / "run", train=settings())
    seeded = made.config.model_copy(update={"train": made.config.train.model_copy(update={"seed": 7})})
    with asyncio.Runner() as runner:
        once, again, other = (
            runner.run(replace(made.sampler, config=config).collect(0, 0))
            for config in (made.config, made.config, seeded)
        )
    assert ids(once) == ids(again) == ids(other)
    sampled = [[each.ids for each in batch.trajectories] for batch in (once, again, other)]
    assert sampled[0] == sampled[1] != sampled[2]


@pytest.mark.parametrize(("truncation", "distinct"), [({}, 3), ({"top_k": 1}, 1), ({"top_p": 1e-6}, 1)])
def test_rollouts_sample_from_the_most_likely_tokens_only(
    parts: Making, tmp_path: Path, truncation: dict[str, Any], distinct: int
) -> None:
    batch = collected(parts(tmp_path / "run", train=settings(**truncation)))
    samples = {group: {each.ids for each in batch.trajectories if each.group == group} for group in (0, 1)}
    assert [len(each) for each in samples.values()] == [distinct, distinct]


def test_parts_and_turn_rewards_of_a_user_are_metrics(
    parts: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judge_of_turns.py").write_text(
        "from sleuth.records import Score\n"
        "async def judge(question, trajectory):\n"
        "    turns = [0.1] * len(trajectory.turns)\n"
        "    return Score(len(set(trajectory.ids)) / len(trajectory.ids), {'style': 0.75}, tuple(turns))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = parts(tmp_path / "run", reward={"answer": "import:judge_of_turns.judge"}, train=settings())
    batch = collected(made)
    metrics = batch.metrics()
    assert metrics["reward/style"] == 0.75
    turns = sum(len(each.turns) for each in batch.trajectories) / len(batch.trajectories)
    assert metrics["reward/turns"] == pytest.approx(0.1 * turns)
    learned = made.learner.learn(batch.kept, StepRates(1e-3), lambda _: True, recompute=False)
    assert learned["policy/gradient_norm"] > 0
