"""The models of a run: what the policy is held against stays what it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sleuth.config.tree import Config
from sleuth.model.packing import pack, row
from sleuth.model.policy import Policy
from sleuth.records import Group
from sleuth.train.learners import learner_of
from sleuth.train.ranks import ALONE
from sleuth.train.step import StepRates


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
    made = learner_of(Config.model_validate(tables), ALONE)
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
