"""Two processes under gloo do what one does: the same losses, weights and checkpoints."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sleuth.config.tree import Config
from sleuth.errors import ConfigError
from sleuth.model.policy import Policy
from sleuth.records import Group
from sleuth.train.ranks import Alone, require_supported

REWARDS = [[1.0, 0.0, 0.6], [0.0, 1.0, 1.0, 0.25], [0.3, 0.9, 0.1, 0.2]]
CASES = (
    "grpo", "gspo", "critic", "kl in the loss", "corrected", "likelihood", "taught in the loss", "taught in the reward",
    "adapter",
)  # fmt: skip
RANKS = ("rank-0", "rank-1")
Found = dict[str, Any]


@pytest.fixture(scope="module")
def kept() -> dict[str, Found]:
    """What was found so far: all tests look at one run of the processes."""
    return {}


@pytest.fixture
def origin(policy: Callable[..., Policy]) -> Policy:
    """What all of them begin with."""
    return policy()


@pytest.fixture
def found(
    kept: dict[str, Found],
    tmp_path: Path,
    origin: Policy,
    policy: Callable[..., Policy],
    groups: Callable[..., list[Group]],
) -> dict[str, Found]:
    """What one process found, what each of two did, and what one did after them."""
    if not kept:
        origin.save(tmp_path / "model")
        policy(1).save(tmp_path / "teacher")
        (tmp_path / "groups.pickle").write_bytes(pickle.dumps(groups(REWARDS)))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        script = Path(__file__).with_name("two_ranks.py")
        command = [sys.executable, str(script), str(tmp_path)]
        # Generous: only processes that wait for each other for ever take so long.
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=400)
        assert ended.returncode == 0, ended.stderr
        for name in ("alone", "rank-0", "rank-1", "after", "deserted", "broken"):
            kept[name] = torch.load(tmp_path / f"{name}.pt")
    return kept


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys() != set()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_two_learn_what_one_learns(case: str, found: dict[str, Found]) -> None:
    metrics, weights = found["alone"]["learned"][case]
    assert {"policy/loss", "policy/gradient_norm"} <= metrics[0].keys()
    for rank in RANKS:
        their_metrics, their_weights = found[rank]["learned"][case]
        for theirs, expected in zip(their_metrics, metrics, strict=True):
            assert theirs == pytest.approx(expected, abs=1e-5, rel=1e-5)
        same(their_weights, weights)


def test_each_step_moves_the_weights_further_than_the_two_may_differ(found: dict[str, Found], origin: Policy) -> None:
    """Otherwise equal weights would say nothing."""
    begun = origin.model.state_dict()
    for case in CASES[:-1]:
        _, weights = found["alone"]["learned"][case]
        moved = [float((weights[name] - each).abs().max()) for name, each in begun.items()]
        assert min(moved) > 1e-4


def test_a_rank_with_fewer_packs_makes_idle_ones(found: dict[str, Found]) -> None:
    idle = [found[rank]["idle"] for rank in RANKS]
    assert len(idle[0]) == len(idle[1])
    assert sum(map(sum, idle)) == 1
    assert not any(found["alone"]["idle"])


def test_threads_gather_beside_each_other(found: dict[str, Found]) -> None:
    for rank in RANKS:
        gathered = found[rank]["gathered"]
        assert gathered["aside"] == [[[("aside", 0, turn)], [("aside", 1, turn)]] for turn in range(50)]
        assert gathered["here"] == [[[("here", 0, turn)], [("here", 1, turn)] * 2] for turn in range(50)]
    assert found["alone"]["gathered"]["aside"][7] == [[("aside", 0, 7)]]


def test_a_random_reward_is_computed_once_where_the_question_was_asked(found: dict[str, Found]) -> None:
    """Computed by both, it would differ: they would keep different groups, and wait for each other for ever."""
    first, second = (found[rank]["asked"] for rank in RANKS)
    assert first["scores"] == second["scores"]
    assert first["kept"] == second["kept"]
    assert first["mine"] + second["mine"] == len(first["scores"])
    assert first["reward_seconds"] == second["reward_seconds"] > 0


def test_each_process_asks_its_share_of_the_questions(found: dict[str, Found]) -> None:
    episodes = [(group, sample) for group, sample, _ in found["rank-0"]["asked"]["scores"]]
    assert len(set(episodes)) == len(episodes)
    asked = 1 + max(group for group, _ in episodes)
    assert sorted(episodes) == [(group, sample) for group in range(asked) for sample in range(3)]
    # Of the four questions of the first round each asks two, three times; of later rounds the first may ask one more.
    first, second = (found[rank]["asked"]["mine"] for rank in RANKS)
    assert second >= 6
    assert 0 <= first - second <= 6


def test_processes_that_do_different_things_say_so(found: dict[str, Found]) -> None:
    for rank in RANKS:
        operation, rows = found[rank]["apart"]
        assert "process 0 at 'place 0', process 1 at 'place 1'; " in operation
        assert "process 0 at 'a batch of 3 rows, " in rows
        assert "process 1 at 'a batch of 4 rows, " in rows
        assert "\n" not in operation + rows
    assert found["alone"]["apart"] == ["", ""]


def test_process_that_left_ends_the_others_with_a_sentence(found: dict[str, Found]) -> None:
    for name, what in (("deserted", "the next step"), ("broken", "a computation of all processes")):
        said = str(found[name])
        assert said.startswith("process 0 ")
        assert f"'{what}'" in said
        assert said.endswith("sleuth train --resume RUN")
        assert "\n" not in said


def test_an_engine_of_its_own_gets_whole_weights(found: dict[str, Found]) -> None:
    assert all(found[name]["published"] for name in ("alone", *RANKS))


def test_what_two_saved_is_continued_by_one(found: dict[str, Found]) -> None:
    same(found["after"]["resumed"]["resumed"], found["alone"]["resumed"]["whole"])


def test_what_one_saved_is_continued_by_two(found: dict[str, Found]) -> None:
    for rank in RANKS:
        same(found[rank]["resumed"]["resumed"], found["alone"]["resumed"]["whole"])


def test_a_process_by_itself_waits_for_nobody() -> None:
    alone = Alone()
    assert alone.gather([1, 2], "two") == alone.for_thread().gather([1, 2], "two") == [[1, 2]]
    alone.barrier("nobody")
    alone.close()


@pytest.mark.parametrize(
    ("tables", "world", "told"),
    [
        ({"train": {"questions": 6}}, 4, r"train\.questions = 6 .* 4 processes"),
        ({"retrieval": {"record": True}}, 2, r"retrieval\.record = true .* 2 "),
        ({"agent": {"run": "import:a.run"}, "gateway": {"port": 8100}}, 2, r"gateway\.port = 8100 .* 2 "),
        ({"agent": {"run": "worker"}}, 2, r"agent\.run = worker .* 2 "),
    ],
)  # fmt: skip
def test_what_several_cannot_share_is_refused(tables: dict[str, Any], world: int, told: str) -> None:
    config = Config.model_validate({"world": {}, **tables})
    require_supported(config, 1)
    with pytest.raises(ConfigError, match=told):
        require_supported(config, world)
