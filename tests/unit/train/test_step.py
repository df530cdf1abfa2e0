"""One step of learning against the naive computation: no packing, stock attention, autograd of the formula."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.config import AlgorithmConfig, TrainConfig
from sleuth.errors import ConfigError, TrainingStopped
from sleuth.model.tokens import Tokens
from sleuth.records import Group, Trajectory
from sleuth.train.policy import Policy
from sleuth.train.step import Learner, learning_rate

REWARDS = [[1.0, 0.0, 0.0, 0.5], [0.0, 1.0, 1.0], [0.25, 0.25]]
TEMPERATURE = 1.3

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "negative advantages weigh less": {"negative_weight": 0.4},
    "clip-higher": {"clip_low": 0.05, "clip_high": 0.6},
    "sequence means": {"normalise": "sequence"},
    "divided by a constant": {"normalise": "constant", "constant": 7},
    "k2 in the loss": {"kl": {"place": "loss", "estimator": "k2", "coefficient": 0.5}},
    "k3 in the loss": {"kl": {"place": "loss", "estimator": "k3", "coefficient": 0.5}},
    "k1 in the reward": {"kl": {"place": "reward", "estimator": "k1", "coefficient": 0.5}},
    "k3 in the reward": {"kl": {"place": "reward", "estimator": "k3", "coefficient": 0.5}},
}


@dataclass(frozen=True)
class Naive:
    """The same step, written down plainly: one trajectory after another through stock attention."""

    model: PreTrainedModel
    reference: PreTrainedModel
    algorithm: AlgorithmConfig

    def loss(self, batch: Sequence[tuple[Trajectory, float]]) -> Tensor:
        total = torch.zeros(())
        for trajectory, advantage in batch:
            kl = self.algorithm.kl
            pairs = zip(
                self.logprobs(self.model, trajectory),
                self.logprobs(self.reference, trajectory).detach(),
                trajectory.logprobs,
                strict=True,
            )
            for new, reference, old in pairs:
                token = self._token(new, old, advantage)
                if kl.place == "loss":
                    token = token + kl.coefficient * self._kl(new, reference)
                total = total + token * self._weight(trajectory, batch)
        return total

    def advantages(self, groups: Sequence[Group]) -> list[tuple[Trajectory, float]]:
        """GRPO by hand: how far from the mean of the group, in its standard deviations."""
        found = []
        for group in groups:
            paid = [
                score.total - self._charge(trajectory)
                for trajectory, score in zip(group.trajectories, group.scores, strict=True)
            ]
            mean = sum(paid) / len(paid)
            spread = sqrt(sum((each - mean) ** 2 for each in paid) / (len(paid) - 1))
            found += [(t, (each - mean) / (spread + 1e-6)) for t, each in zip(group.trajectories, paid, strict=True)]
        return found

    def logprobs(self, model: PreTrainedModel, trajectory: Trajectory) -> Tensor:
        ids = torch.tensor(trajectory.ids)
        every = torch.log_softmax(model(input_ids=ids[None]).logits[0] / TEMPERATURE, -1)
        places = [place for place, sampled in enumerate(trajectory.sampled) if sampled]
        return torch.stack([every[place - 1, ids[place]] for place in places])

    def _token(self, new: Tensor, old: float, advantage: float) -> Tensor:
        ratio = (new - old).exp()
        held = ratio.clamp(1 - self.algorithm.clip_low, 1 + self.algorithm.clip_high)
        weight = self.algorithm.negative_weight if advantage < 0 else 1.0
        return -weight * torch.minimum(advantage * ratio, advantage * held)

    def _kl(self, new: Tensor, reference: Tensor) -> Tensor:
        difference = reference - new
        match self.algorithm.kl.estimator:
            case "k1":
                return -difference
            case "k2":
                return difference**2 / 2
            case "k3":
                return difference.exp() - 1 - difference

    def _charge(self, trajectory: Trajectory) -> float:
        if self.algorithm.kl.place != "reward":
            return 0.0
        reference = self.logprobs(self.reference, trajectory).tolist()
        kl = sum(
            float(self._kl(torch.tensor(old), torch.tensor(each)))
            for old, each in zip(trajectory.logprobs, reference, strict=True)
        )
        return self.algorithm.kl.coefficient * kl

    def _weight(self, trajectory: Trajectory, batch: Sequence[tuple[Trajectory, float]]) -> float:
        match self.algorithm.normalise:
            case "token":
                return 1 / sum(len(each.logprobs) for each, _ in batch)
            case "sequence":
                return 1 / (len(batch) * len(trajectory.logprobs))
            case "constant":
                return 1 / (len(batch) * self.algorithm.constant)


@pytest.fixture
def learner(tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> Callable[..., Learner]:
    """Makes a learner whose gradient is not clipped; its reference has other weights.

    It descends by plain momentum: AdamW would blow up the rounding of gradients that are all but zero.
    """

    def make(algorithm: dict[str, Any] | None = None, **train: Any) -> Learner:
        policy = Policy(tiny(seed=0), tokens)
        settings = {"learning_rate": 1e-2, "temperature": TEMPERATURE, "gradient_clip": 1e9, **train}
        return Learner(
            policy,
            momentum(policy.model),
            Policy(tiny(seed=1), tokens),
            AlgorithmConfig.model_validate(algorithm or {}),
            TrainConfig.model_validate(settings),
        )

    return make


@pytest.fixture
def naive(tiny: Callable[..., PreTrainedModel]) -> Callable[..., Naive]:
    def make(algorithm: dict[str, Any] | None = None) -> Naive:
        return Naive(
            tiny(seed=0, attention="eager"),
            tiny(seed=1, attention="eager"),
            AlgorithmConfig.model_validate(algorithm or {}),
        )

    return make


def momentum(model: PreTrainedModel) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def weights(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 2e-6) -> None:
    assert first.keys() == second.keys() != set()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_gradient_is_that_of_the_naive_loss(
    algorithm: dict[str, Any],
    learner: Callable[..., Learner],
    naive: Callable[..., Naive],
    groups: Callable[..., list[Group]],
) -> None:
    ours, plain, made = learner(algorithm), naive(algorithm), groups(REWARDS)
    ours.learn(made, 0)
    plain.loss(plain.advantages(made)).backward()
    same(gradients(ours.policy.model), gradients(plain.model))


def test_weights_after_a_step_are_those_of_the_naive_one(
    learner: Callable[..., Learner], naive: Callable[..., Naive], groups: Callable[..., list[Group]]
) -> None:
    ours, plain, made = learner(), naive(), groups(REWARDS)
    metrics = ours.learn(made, 0)
    optimiser = momentum(plain.model)
    plain.loss(plain.advantages(made)).backward()
    norm = float(torch.stack([each.norm() for each in gradients(plain.model).values()]).norm())
    optimiser.step()
    assert metrics["policy/gradient_norm"] == pytest.approx(norm, rel=1e-4)
    same(weights(ours.policy.model), weights(plain.model), tolerance=1e-5)


def test_more_updates_are_as_many_steps_on_parts_of_the_batch(
    learner: Callable[..., Learner], naive: Callable[..., Naive], groups: Callable[..., list[Group]]
) -> None:
    ours, plain, made = learner(updates=2), naive(), groups(REWARDS)
    ours.learn(made, 0)
    optimiser = momentum(plain.model)
    batch = plain.advantages(made)
    for half in (batch[:4], batch[4:]):
        optimiser.zero_grad()
        plain.loss(half).backward()
        optimiser.step()
    same(weights(ours.policy.model), weights(plain.model), tolerance=1e-5)


def test_metrics_are_means_over_the_trained_tokens(
    learner: Callable[..., Learner], naive: Callable[..., Naive], groups: Callable[..., list[Group]]
) -> None:
    algorithm = {"kl": {"place": "loss", "estimator": "k2"}}
    plain, made = naive(algorithm), groups(REWARDS)
    found = learner(algorithm).learn(made, 0)
    tokens = [
        (new, reference, old, advantage)
        for trajectory, advantage in plain.advantages(made)
        for new, reference, old in zip(
            plain.logprobs(plain.model, trajectory).tolist(),
            plain.logprobs(plain.reference, trajectory).tolist(),
            trajectory.logprobs,
            strict=True,
        )
    ]
    ratios = [(exp(new - old), advantage) for new, _, old, advantage in tokens]
    clipped = sum(ratio > 1.2 if advantage > 0 else ratio < 0.8 for ratio, advantage in ratios if advantage)
    count = len(tokens)
    assert found["policy/ratio"] == pytest.approx(sum(ratio for ratio, _ in ratios) / count, rel=1e-4)
    assert found["policy/clipped"] == pytest.approx(clipped / count)
    assert found["policy/kl"] == pytest.approx(sum((new - ref) ** 2 / 2 for new, ref, _, _ in tokens) / count, rel=1e-4)
    assert found["policy/learning_rate"] == 1e-2


@pytest.mark.parametrize("pack_tokens", [1, 20, 45])
def test_gradient_does_not_depend_on_the_packs(
    pack_tokens: int, learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    small, large, made = learner(pack_tokens=pack_tokens), learner(pack_tokens=10_000), groups(REWARDS)
    found, expected = small.learn(made, 0), large.learn(made, 0)
    same(gradients(small.policy.model), gradients(large.policy.model))
    assert found == pytest.approx(expected, rel=1e-4)


def test_gradient_does_not_depend_on_the_order(
    learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    forwards, backwards, made = learner(pack_tokens=30), learner(pack_tokens=30), groups(REWARDS)
    turned = [Group(each.question, each.trajectories[::-1], each.scores[::-1]) for each in reversed(made)]
    forwards.learn(made, 0)
    backwards.learn(turned, 0)
    same(gradients(forwards.policy.model), gradients(backwards.policy.model))


def test_groups_without_spread_only_dilute_the_mean(
    learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    """Their tokens count in the divisor of the loss, as they would in a mean over all; the record leaves them out."""
    alone, beside = learner(), learner()
    spread, idle = groups([[1.0, 0.0]]), groups([[0.5, 0.5], [1.0, 1.0, 1.0]], seed=9)
    expected, found = alone.learn(spread, 0), beside.learn([*spread, *idle], 0)
    counts = [sum(len(t.logprobs) for each in made for t in each.trajectories) for made in (spread, [*spread, *idle])]
    diluted = {name: each * counts[0] / counts[1] for name, each in gradients(alone.policy.model).items()}
    same(gradients(beside.policy.model), diluted)
    for name in ("policy/ratio", "policy/clipped", "policy/entropy"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)


@pytest.mark.parametrize("place", ["none", "loss"])
def test_without_any_advantage_only_kl_moves_the_weights(
    place: str, learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    ours = learner({"kl": {"place": place}})
    ours.learn(groups(REWARDS), 0)
    before = weights(ours.policy.model)
    found = ours.learn(groups([[1.0, 1.0], [0.0, 0.0]], seed=3), 1)
    moved = any(not torch.equal(before[name], after) for name, after in weights(ours.policy.model).items())
    assert moved == (place == "loss")
    assert ("policy/entropy" in found) == moved


def test_loss_of_the_users_own_may_move_the_weights_without_an_advantage(
    learner: Callable[..., Learner], groups: Callable[..., list[Group]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_loss.py").write_text(
        "from sleuth.algorithms.loss import TokenLoss\n"
        "def likelier(logprob_T, old_T, advantage_T, clip_low, clip_high, negative_weight):\n"
        "    return TokenLoss(-logprob_T, {})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ours = learner({"loss": "import:own_loss.likelier"})
    before = weights(ours.policy.model)
    ours.learn(groups([[1.0, 1.0], [0.0, 0.0]]), 0)
    assert any(not torch.equal(before[name], after) for name, after in weights(ours.policy.model).items())


@pytest.mark.parametrize("place", ["none", "loss", "reward"])
def test_trajectories_without_sampled_tokens_teach_nothing(
    place: str,
    learner: Callable[..., Learner],
    trajectory: Callable[..., Trajectory],
    groups: Callable[..., list[Group]],
) -> None:
    """A prompt that fills the context leaves no room to sample, and no reason to fail."""
    ours = learner({"advantage": "reinforce", "kl": {"place": place}}, pack_tokens=1)
    (group,) = groups([[0.0, 1.0]])
    silent = trajectory((3, 4), (False, False))
    before = weights(ours.policy.model)
    ours.learn([Group(group.question, (silent, silent), group.scores)], 0)
    assert all(torch.equal(before[name], after) for name, after in weights(ours.policy.model).items())


def test_gradient_that_is_no_number_ends_the_run_and_leaves_the_weights(
    learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    ours = learner()
    before = weights(ours.policy.model)
    with pytest.raises(TrainingStopped, match="the gradient norm is nan, so the weights were left as they are"):
        ours.learn(groups([[inf, 0.0]]), 0)
    assert all(torch.equal(before[name], after) for name, after in weights(ours.policy.model).items())


def test_gradient_is_scaled_down_to_its_limit(
    learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    ours = learner(gradient_clip=1e-3)
    norm = ours.learn(groups(REWARDS), 0)["policy/gradient_norm"]
    clipped = torch.stack([each.norm() for each in gradients(ours.policy.model).values()]).norm()
    assert norm > 0.1
    assert float(clipped) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("knob", ["advantage", "loss"])
def test_unknown_name_is_found_before_the_first_step(knob: str, learner: Callable[..., Learner]) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm\.{knob} = 'gppo' is unknown"):
        learner({knob: "gppo"})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0]),
        ({"warmup": 0.5}, [0.5, 1.0, 1.0, 1.0]),
        ({"decay": 0.5}, [1.0, 1.0, 1.0, 0.5]),
        ({"warmup": 1.0}, [0.25, 0.5, 0.75, 1.0]),
        ({"decay": 1.0}, [1.0, 0.75, 0.5, 0.25]),
        ({"warmup": 1.0, "decay": 1.0}, [0.25, 0.5, 0.5, 0.25]),
    ],
)
def test_learning_rate_rises_and_falls(settings: dict[str, float], expected: list[float]) -> None:
    train = TrainConfig.model_validate({"steps": 4, "learning_rate": 2.0, **settings})
    assert [learning_rate(train, step) / 2.0 for step in range(4)] == expected
