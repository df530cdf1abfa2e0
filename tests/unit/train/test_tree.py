"""Rollout trees: exact prefixes, each sampled token trained once, in every mode and on several ranks."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sleuth.config.algorithm import AlgorithmConfig
from sleuth.evaluate.folder import read_trajectory
from sleuth.records import Branch, Group, Malformed, Outcome, Question, Score, Segment, StopReason, Trajectory, Turn
from sleuth.runs.json_files import read_rows
from sleuth.runs.trajectory import FullRow, trajectory_row, unsupported_version, validate_row
from sleuth.train.credit import RewardBatch, attach_advantages, attach_turn_rewards
from sleuth.train.experience import build_experiences, experience_rows
from sleuth.train.loop import train
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts
from sleuth.train.ranks import ALONE, Alone
from sleuth.train.rollout import RolloutBatch
from sleuth.train.sharding import rank_packs
from sleuth.train.tree import draw_nodes

Making = Callable[..., Parts]
UNASKED = {"before": False, "after": False}
QUESTION = Question("q", "Who?", ("Ada",), "library")


def tables(judged: str, tree: dict[str, int] | None = None, **train_settings: Any) -> dict[str, Any]:
    shape = {"trees": 2, "branches": 2, "rounds": 1} | (tree or {})
    samples = shape["trees"] * (1 + shape["branches"] * shape["rounds"])
    return {
        "agent": {"searches": 3, "context_tokens": 200},
        "reward": {"answer": judged},
        "algorithm": {"advantage": "tree_grpo"},
        "evaluate": UNASKED,
        "train": {"samples": samples, "tree": shape, **train_settings},
    }


def collected(made: Parts) -> RolloutBatch:
    with asyncio.Runner() as runner:
        return runner.run(made.sampler.collect(0, 0))


@pytest.mark.parametrize("rounds", [1, 3])
def test_branches_continue_the_exact_tokens_of_their_parents(
    rounds: int, parts: Making, tmp_path: Path, judged: str
) -> None:
    batch = collected(parts(tmp_path / "run", **tables(judged, {"rounds": rounds})))
    assert len(batch.trajectories) == 2 * 2 * (1 + 2 * rounds)
    assert [(each.group, each.sample) for each in batch.trajectories] == [
        (group, sample) for group in range(2) for sample in range(2 * (1 + 2 * rounds))
    ]
    found = {(each.group, each.sample): each for each in batch.trajectories}
    for each in batch.trajectories:
        assert each.branch is not None
        assert each.branch.tree == (each.sample if each.sample < 2 else (each.sample - 2) // 2 % 2)
        if each.branch.parent is None:
            assert each.sample < 2
            continue
        parent, shared = found[each.group, each.branch.parent], each.branch.shared
        assert parent.branch is not None
        assert parent.branch.tree == each.branch.tree
        assert each.ids[:shared] == parent.ids[:shared]
        assert parent.sampled[shared]  # it was cut where a turn of the parent starts
        assert shared > parent.branch.shared
        assert not any(each.sampled[:shared])
        (segment,) = each.segments
        first = segment.calls[0][0]
        assert each.turns[:first] == parent.turns[:first]
        assert segment.calls == tuple((first + n, turn.tokens) for n, turn in enumerate(each.turns[first:]))
        assert sum(tokens for _, tokens in segment.calls) == sum(each.sampled) == len(each.logprobs)
        assert first > 0 or all(len(other.turns) == 1 for other in batch.trajectories if other.group == each.group)
    grown = [(each, each.branch) for each in batch.trajectories if each.branch is not None]
    pairs = [(each.ids, found[each.group, at.parent].ids, at.shared) for each, at in grown if at.parent is not None]
    assert any(own[shared:] != parent[shared:] for own, parent, shared in pairs)
    metrics = batch.metrics()
    assert metrics["tree/leaves"] == 1 + 2 * rounds
    assert 0 < metrics["tree/shared_tokens"] < 1


def test_equal_seeds_draw_equal_trees_and_the_engine_reuses_their_prefixes(
    parts: Making, tmp_path: Path, judged: str
) -> None:
    batches = []
    for name in ("a", "b"):
        made = parts(tmp_path / name, **tables(judged))
        batches.append(collected(made))
        branches = [each for each in batches[-1].trajectories if each.branch is not None and each.branch.shared]
        # All but the part of the last page that is not full, and the last token.
        assert made.engine.stats.reused >= sum(each.branch.shared - 16 for each in branches if each.branch)  # type: ignore[attr-defined]
    assert batches[0].trajectories == batches[1].trajectories


def test_each_sampled_token_of_a_tree_trains_once(parts: Making, tmp_path: Path, judged: str) -> None:
    batch = collected(parts(tmp_path / "run", **tables(judged)))
    rows = experience_rows(build_experiences(batch.trajectories, 1.0))
    assert len({row.family for row in rows}) == 4
    assert sum(len(row.positions_S) for row in rows) == sum(len(each.logprobs) for each in batch.trajectories)
    packs = list(rank_packs(rows, 100_000, torch.device("cpu"), ALONE))
    assert sum(len(each.ids_N) for each in packs) < sum(len(each.ids) for each in batch.trajectories)


@pytest.mark.parametrize("mode", ["sync", "ahead", "async"])
def test_runs_train_on_trees_in_every_mode(mode: str, parts: Making, tmp_path: Path, judged: str) -> None:
    settings = tables(judged, mode=mode)
    if mode != "sync":
        settings["algorithm"] |= {"correction": {"level": "token"}}
    made = parts(tmp_path / "run", **settings)
    before = [each.detach().clone() for _, each in made.learner.policy.parameters()]
    train(made, SilentObserver(), 0.0)
    assert any(
        not torch.equal(old, new) for old, (_, new) in zip(before, made.learner.policy.parameters(), strict=True)
    )
    *_, last = made.run.metrics()
    assert last["step"] == 3
    assert last["tree/leaves"] == 3
    if mode == "sync":
        assert last["policy/ratio"] == pytest.approx(1.0, abs=1e-5)
    written = list(read_rows(made.run.trajectories(3)))
    assert [row["branch"]["parent"] for row in written[:2]] == [None, None]
    assert all(row["branch"]["shared"] for row in written[2:6])


@dataclass(frozen=True)
class Second(Alone):
    """The second of two ranks, of which the first brings nothing."""

    rank: int = 1
    world: int = 2

    def gather(self, mine: Sequence[Any], what: str) -> list[list[Any]]:
        return [list(mine) if what == "the counts of searches" else [], list(mine)]


def test_a_rank_grows_the_trees_of_its_share_of_the_questions(parts: Making, tmp_path: Path, judged: str) -> None:
    made = parts(tmp_path / "run", **tables(judged, questions=4))
    alone = collected(made)
    with asyncio.Runner() as runner:
        batch = runner.run(replace(made.sampler, ranks=Second()).collect(0, 0))
    expected = [(group, sample) for group in (1, 3) for sample in range(6)]
    assert [(each.group, each.sample) for each in batch.trajectories] == expected
    # Which episodes run beside others changes neither what is drawn nor what is sampled.
    assert [each.ids for each in batch.trajectories] == [each.ids for each in alone.trajectories if each.group % 2]


def attempt(
    sample: int, runs: Sequence[tuple[bool, int]], branch: Branch, calls: Sequence[tuple[int, int]] = (),
    stop: StopReason = StopReason.ANSWERED,
) -> Trajectory:  # fmt: skip
    """An attempt whose tokens are those runs of given and sampled ones; turns of as many tokens as the sampled runs."""
    sampled = tuple(own for own, count in runs for _ in range(count))
    count = sum(sampled)
    turns = tuple(Turn("", Malformed(""), Outcome.CORRECTED, n) for own, n in runs if own)
    segment = Segment(tuple(range(len(sampled))), sampled, (-1.0,) * count, (0,) * count, calls=tuple(calls))
    return Trajectory(QUESTION, 0, sample, 1, (segment,), turns, stop, branch=branch)


TRUNK = attempt(0, [(False, 3), (True, 2), (False, 2), (True, 2), (False, 1), (True, 1)], Branch(0))


def test_nodes_are_the_states_before_turns_each_drawn_once_before_any_is_drawn_again() -> None:
    drawn = draw_nodes([TRUNK], 4, "seed")
    assert sorted((turn, shared) for _, turn, shared in drawn[:2]) == [(1, 7), (2, 10)]
    assert drawn[2:] == drawn[:2]
    assert {draw_nodes([TRUNK], 1, str(seed))[0][2] for seed in range(20)} == {7, 10}


def test_a_branch_adds_the_states_after_its_first_turn() -> None:
    branch = attempt(1, [(False, 7), (True, 2), (False, 2), (True, 3)], Branch(0, 0, 7), ((1, 2), (2, 3)))
    found = {(each.sample, turn, shared) for each, turn, shared in draw_nodes([TRUNK, branch], 3, "seed")}
    assert found == {(0, 1, 7), (0, 2, 10), (1, 2, 11)}


def test_a_tree_of_one_turn_branches_from_the_prompt_and_an_unusable_one_not_at_all() -> None:
    short = attempt(0, [(False, 3), (True, 2)], Branch(0))
    assert [(turn, shared) for _, turn, shared in draw_nodes([short], 2, "seed")] == [(0, 3), (0, 3)]
    assert draw_nodes([replace(TRUNK, stop=StopReason.SEARCH_UNAVAILABLE)], 2, "seed") == []


def experiences_of(turns: Sequence[Sequence[float]] = ((), ())) -> tuple[list[Any], RewardBatch]:
    """A trunk that earned 1, and a branch from its second turn that earned 0."""
    branch = attempt(1, [(False, 7), (True, 2)], Branch(0, 0, 7), ((1, 2),))
    scores = [Score(total, {}, tuple(each)) for total, each in zip((1.0, 0.0), turns, strict=True)]
    batch = RewardBatch.of([Group(QUESTION, (TRUNK, branch), tuple(scores))])
    return attach_turn_rewards(build_experiences(batch.trajectories, 1.0), batch), batch


def advantages(made: Sequence[Any], batch: RewardBatch, name: str) -> list[list[float]]:
    algorithm = AlgorithmConfig(advantage=name)
    found = attach_advantages(made, batch.rewards_N, batch.groups_N, algorithm, 0.0)
    return [each.columns["advantage"].tolist() for each in found]


def test_tokens_that_both_leaves_contain_have_their_mean_advantage() -> None:
    made, batch = experiences_of()
    assert advantages(made, batch, "dr_grpo") == [[0.0, 0.0, 0.5, 0.5, 0.5], [-0.5, -0.5]]
    deviation = 0.5 / (0.5**0.5 + 1e-6)  # the same among all leaves and within the only tree
    expected = [0.0, 0.0, *[2 * deviation] * 3, *[-2 * deviation] * 2]
    found = advantages(made, batch, "tree_grpo")
    assert [*found[0], *found[1]] == pytest.approx(expected, abs=1e-6)


def test_a_branch_is_not_credited_for_the_turns_that_it_shares() -> None:
    made, batch = experiences_of(((0.25, 0.0, 0.0), (0.25, 0.0)))
    # Returns 1.25 and 0.25: +-0.5; what the first turn earned is behind all later tokens.
    assert advantages(made, batch, "dr_grpo") == [[0.0, 0.0, 0.25, 0.25, 0.25], [-0.75, -0.75]]


def test_a_branch_whose_parent_is_lost_stands_alone() -> None:
    made, batch = experiences_of()
    other = replace(TRUNK, sample=2, branch=Branch(1))
    batch = replace(batch, trajectories=[other, batch.trajectories[1]])
    assert advantages(build_experiences(batch.trajectories, 1.0), batch, "dr_grpo") == [[0.5] * 5, [-0.5] * 2]
    assert len(made) == 2


def test_the_place_in_the_tree_is_written_and_read_again() -> None:
    branch = replace(TRUNK, branch=Branch(1, 0, 7))
    for each, row in ((each, json.loads(json.dumps(trajectory_row(each, None)))) for each in (TRUNK, branch)):
        validate_row(FullRow, row)
        assert row["version"] == 1
        assert unsupported_version(row) is None
        assert read_trajectory(row, QUESTION) == each
    assert "branch" not in trajectory_row(replace(TRUNK, branch=None), None)
