"""Advantages and losses of the user's own: what they return is checked, never broadcast."""

from pathlib import Path

import pytest
import torch

from sleuth.algorithms.correction import Correction
from sleuth.algorithms.loss import Bounds, Sampled, TokenLoss
from sleuth.config.algorithm import AlgorithmConfig, CorrectionConfig
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.train import objective

CODE = """
import torch
from sleuth.algorithms.correction import Correction
from sleuth.algorithms.loss import TokenLoss

def made(sampled): return -sampled.logprob_T
def loss_fits(sampled, bounds): return TokenLoss(made(sampled), {"own": sampled.old_T})
def loss_scalar(sampled, bounds): return TokenLoss(made(sampled).mean(), {})
def loss_one(sampled, bounds): return TokenLoss(made(sampled)[:1], {})
def loss_rows(sampled, bounds): return TokenLoss(made(sampled)[None], {})
def loss_bare(sampled, bounds): return made(sampled)
def loss_number(sampled, bounds): return TokenLoss(0.5, {})
def loss_detached(sampled, bounds): return TokenLoss(made(sampled).detach(), {})
def loss_metric(sampled, bounds): return TokenLoss(made(sampled), {"own": 0.5})
def loss_metric_scalar(sampled, bounds): return TokenLoss(made(sampled), {"own": sampled.old_T.mean()})
def loss_metrics(sampled, bounds): return TokenLoss(made(sampled), None)
def loss_raises(sampled, bounds): return sampled.reward
def loss_short(sampled): pass

def fits(rewards, groups): return rewards * 2
def scalar(rewards, groups): return rewards.mean()
def longer(rewards, groups): return torch.cat([rewards, rewards])
def column(rewards, groups): return rewards[:, None]
def whole(rewards, groups): return torch.ones(len(rewards), dtype=torch.long)
def listed(rewards, groups): return rewards.tolist()
def nothing(rewards, groups): pass
def raises(rewards, groups): return rewards / "2"
async def waits(rewards, groups): pass

def halves(old, rollout, row): return torch.full_like(old, 0.5)
def counted(old, rollout, row): return Correction(torch.ones_like(old), {"own": 2})
def one_weight(old, rollout, row): return torch.ones(1)
def infinite(old, rollout, row): return old / 0.0
def two_parameters(old, rollout): pass
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "objective_of_a_user.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)


def settings(**knobs: str) -> AlgorithmConfig:
    return AlgorithmConfig.model_validate({knob: f"import:objective_of_a_user.{name}" for knob, name in knobs.items()})


def lost(name: str) -> TokenLoss:
    logprob_T = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    sampled = Sampled(logprob_T, torch.zeros(3), torch.ones(3), torch.zeros(3, dtype=torch.long))
    return objective.policy_loss(settings(loss=name), sampled, Bounds(0.2, 0.2))


def compared(name: str) -> torch.Tensor:
    return objective.advantages(settings(advantage=name), torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 1]))


def test_functions_that_return_what_they_should_are_taken() -> None:
    assert lost("loss_fits").value_T.tolist() == [1.0, 2.0, 3.0]
    assert compared("fits").tolist() == [2.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("loss_scalar", r"returned a Tensor of float32 of shape \(\) as value_T; expected .* of shape \(3,\)"),
        ("loss_one", r"of shape \(1,\) as value_T; expected a Tensor of floats of shape \(3,\)"),
        ("loss_rows", r"of shape \(1, 3\) as value_T; expected a Tensor of floats of shape \(3,\)"),
        ("loss_bare", "returned Tensor; expected a TokenLoss"),
        ("loss_number", "returned float as value_T; expected a Tensor"),
        ("loss_detached", "returned a value_T without gradient"),
        ("loss_metric", "returned float as the metric 'own'; expected a Tensor"),
        ("loss_metric_scalar", r"of shape \(\) as the metric 'own'"),
        ("loss_metrics", "expected a TokenLoss"),
        ("loss_raises", r"raised AttributeError: .*objective_of_a_user.py:17\)"),
    ],
)
def test_a_loss_of_another_shape_is_refused(name: str, says: str) -> None:
    with pytest.raises(FunctionFailed, match=rf"'import:objective_of_a_user.{name}' .*{says}"):
        lost(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("scalar", r"of shape \(\); expected a Tensor of floats of shape \(3,\)"),
        ("longer", r"of shape \(6,\); expected"),
        ("column", r"of shape \(3, 1\); expected"),
        ("whole", r"a Tensor of int64 of shape \(3,\); expected a Tensor of floats"),
        ("listed", "returned list; expected a Tensor"),
        ("nothing", "returned NoneType; expected a Tensor"),
        ("raises", r"raised TypeError: .*objective_of_a_user.py:27\)"),
    ],
)
def test_an_advantage_of_another_shape_is_refused(name: str, says: str) -> None:
    with pytest.raises(FunctionFailed, match=rf"'import:objective_of_a_user.{name}' .*{says}"):
        compared(name)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [({"loss": "loss_short"}, "cannot be called with 2 arguments"), ({"advantage": "waits"}, "is async")],
)
def test_what_cannot_be_called_is_refused_before_the_run(knobs: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        objective.require(settings(**knobs))


def corrected(name: str) -> Correction:
    config = CorrectionConfig(level=f"import:objective_of_a_user.{name}")
    return objective.correct(config, torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]), torch.tensor([0, 1]))


def test_a_correction_of_the_user_weighs_tokens() -> None:
    assert corrected("halves").weight_T.tolist() == [0.5, 0.5]
    assert corrected("counted").metrics == {"own": 2.0}


@pytest.mark.parametrize(
    ("name", "says"),
    [("one_weight", r"shape \(1,\).*shape \(2,\)"), ("infinite", "not finite"), ("nothing", "arguments")],
)
def test_a_correction_that_is_no_weight_per_token_is_refused(name: str, says: str) -> None:
    with pytest.raises((FunctionFailed, ConfigError), match=says):
        corrected(name)


def test_a_correction_with_a_wrong_signature_is_refused_before_the_run() -> None:
    correction = CorrectionConfig(level="import:objective_of_a_user.two_parameters")
    with pytest.raises(ConfigError, match="cannot be called with 3 arguments"):
        objective.require(AlgorithmConfig(correction=correction))
