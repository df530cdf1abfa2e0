"""The models of a run: what the policy is held against stays what it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sleuth.config.algorithm import CriticConfig
from sleuth.config.train import TrainConfig
from sleuth.config.tree import Config
from sleuth.model.packing import Pack, pack, row
from sleuth.model.policy import Policy
from sleuth.records import Group
from sleuth.train.models import Critic
from sleuth.train.ranks import ALONE
from sleuth.train.step import Learner, StepRates


@pytest.mark.parametrize("lora", [{}, {"rank": 2, "alpha": 4}])
def test_reference_stays_while_the_policy_learns(
    lora: dict[str, Any], tmp_path: Path, policy: Callable[..., Policy], groups: Callable[..., list[Group]]
) -> None:
    """A reference that learned along would be at a distance of 0 for ever."""
    policy().save(tmp_path / "model")
    tables = {
        "world": {},
        "agent": {"context_tokens": 90},
        "model": {"policy": str(tmp_path / "model"), "lora": lora},
        "algorithm": {"kl": {"place": "loss"}},
        "train": {"questions": 2, "learning_rate": 1e-2},
    }
    made = Learner.build(Config.model_validate(tables), ALONE)
    assert made.reference is not None
    (packed,) = pack([row([5, 6, 7, 8, 9], [0.0, 1.0, 1.0, 1.0, 1.0])], 100, torch.device("cpu"))
    with torch.no_grad():
        begun = made.policy.score(packed, 1.0)[0]
        distances = []
        for _ in range(4):
            with torch.enable_grad():
                found = made.learn(groups([[1.0, 0.0, 0.5]]), StepRates(1e-2, 1e-3), lambda _: True, recompute=True)
            distances.append(found["policy/kl"])
        torch.testing.assert_close(made.reference.score(packed, 1.0)[0], begun, rtol=0, atol=1e-6)
        assert (made.policy.score(packed, 1.0)[0] - begun).abs().max() > 1e-2
    assert distances[0] == pytest.approx(0.0, abs=1e-6)
    assert distances[-1] > 1e-4


CPU = torch.device("cpu")


@pytest.fixture
def critic(policy: Callable[..., Policy], tmp_path: Path) -> Critic:
    policy().save(tmp_path / "model")
    return Critic.load(tmp_path / "model", CPU, torch.float32, CriticConfig(), TrainConfig())


def packed(*rows: list[int]) -> Pack:
    (only,) = pack([row(ids, [0.0, *[1.0] * (len(ids) - 1)]) for ids in rows], 1000, CPU)
    return only


def test_at_first_it_expects_nothing(critic: Critic) -> None:
    assert critic.values(packed([5, 6, 7], [8, 9])).tolist() == [0.0, 0.0, 0.0]


def test_value_is_told_before_the_token_is_chosen(critic: Critic) -> None:
    """Another token in its place changes the values after it, and not its own."""
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    first, second = (critic.values(packed(ids)).tolist() for ids in ([5, 6, 7, 8], [5, 6, 9, 8]))
    assert first[:2] == pytest.approx(second[:2], rel=1e-5)
    assert abs(first[2] - second[2]) > 1e-3


def test_it_trains_body_and_head_and_keeps_no_logits(critic: Critic) -> None:
    names = {name.partition(".")[2] for name in critic.optimiser.state(whole=True)}
    assert any(name.startswith("body.layers.0") for name in names)
    assert {"head.weight", "head.bias"} <= names
    assert not any("lm_head" in name for name in names)
    assert not any("lm_head" in name for name, _ in critic.body.model.named_parameters())


def test_it_learns_what_comes(critic: Critic) -> None:
    wanted = torch.tensor([1.0, 1.0, 0.0])
    for _ in range(30):
        critic.optimiser.zero()
        (critic.values(packed([5, 6, 7], [8, 9])) - wanted).square().mean().backward()
        critic.optimiser.step(1e-2, 1.0)
    assert critic.values(packed([5, 6, 7], [8, 9])).tolist() == pytest.approx(wanted.tolist(), abs=0.1)
