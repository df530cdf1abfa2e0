"""The critic: what it begins as, what it tells, and that it learns."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sleuth.config.algorithm import CriticConfig
from sleuth.config.train import TrainConfig
from sleuth.model.packing import Pack, pack, row
from sleuth.model.policy import Policy
from sleuth.train.critic import Critic

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
