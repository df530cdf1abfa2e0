"""One step of learning against the naive computation: no packing, stock attention, autograd of the formula."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, isnan, prod, sqrt
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.config.algorithm import AlgorithmConfig, CriticConfig
from sleuth.config.train import TrainConfig
from sleuth.errors import ConfigError
from sleuth.model.policy import Policy, Reference
from sleuth.model.tokens import Tokens
from sleuth.records import Group, Segment, StopReason, Trajectory
from sleuth.train.experience import build_experiences, experience_rows
from sleuth.train.models import Critic
from sleuth.train.optimiser import Optimiser
from sleuth.train.ranks import ALONE
from sleuth.train.sharding import score_rows
from sleuth.train.step import Learner, StepRates

REWARDS = [[1.0, 0.0, 0.0, 0.5], [0.0, 1.0, 1.0], [0.25, 0.25]]
TEMPERATURE = 1.3
CONTEXT = 24  # tokens the longest trajectories come near

# The episodes below .3 have failed; the model is given to the learner.
TEACHER: dict[str, Any] = {"policy": "given", "coefficient": 0.5, "reward_below": 0.3}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"advantage": "dr_grpo", "normalise": "constant", "constant": 9},
    "rloo": {"advantage": "rloo"},
    "reinforce": {"advantage": "reinforce"},
    "reinforce_pp": {"advantage": "reinforce_pp"},
    "gspo": {"loss": "gspo", "clip_low": 0.5, "clip_high": 0.9, "normalise": "sequence"},
    "cispo": {"loss": "cispo", "clip_high": 1.5},
    "negative advantages weigh less": {"negative_weight": 0.4},
    "clip-higher": {"clip_low": 0.05, "clip_high": 0.6},
    "dual clip": {"clip_dual": 1.5},
    "entropy bonus": {"entropy": 0.3},
    "sequence means": {"normalise": "sequence"},
    "divided by a constant": {"normalise": "constant", "constant": 7},
    "k2 in the loss": {"kl": {"place": "loss", "estimator": "k2", "coefficient": 0.5}},
    "k3 in the loss": {"kl": {"place": "loss", "estimator": "k3", "coefficient": 0.5}},
    "k1 in the reward": {"kl": {"place": "reward", "estimator": "k1", "coefficient": 0.5}},
    "KL in the reward": {"kl": {"place": "reward", "coefficient": 0.5}},
    "KL in the loss": {"kl": {"place": "loss", "coefficient": 0.5}},
    "LLDS by action": {"likelihood": {"penalty": "llds", "coefficient": 0.7}},
    "LLDS by trajectory": {"likelihood": {"penalty": "llds", "coefficient": 0.7, "level": "trajectory"}},
    "SAPO": {"likelihood": {"penalty": "sapo", "coefficient": 0.7}},
    "SAPO with a threshold": {"likelihood": {"penalty": "sapo", "coefficient": 0.7, "threshold": 0.6}},
    "teacher in the loss": {"teacher": {**TEACHER, "place": "loss"}},
    "teacher in the reward": {"teacher": TEACHER},
    "teacher in the reward, undivided": {"advantage": "dr_grpo", "teacher": TEACHER},
    "teacher in the reward, KL too": {"kl": {"place": "reward", "coefficient": 0.5}, "teacher": TEACHER},
    "teacher and gae": {"advantage": "gae", "critic": {"gamma": 0.9, "lam": 0.8}, "teacher": TEACHER},
    "old logprobs recomputed": {"old": "recompute"},
    "tokens truncated": {"correction": {"level": "token", "action": "truncate", "high": 1.1}},
    "sequences masked": {"correction": {"level": "sequence", "action": "mask", "low": 0.2, "high": 8.0}},
    "retrieved text trained on": {"origin_mask": False, "kl": {"place": "loss"}},
    "overlong left out": {"overlong": "filter"},
    "overlong punished": {"overlong": "shape", "overlong_tokens": 12},
    "gae": {"advantage": "gae", "critic": {"gamma": 0.9, "lam": 0.8}},
    "gae, KL charged where it arises": {"advantage": "gae", "kl": {"place": "reward", "coefficient": 0.5}},
}


@dataclass(frozen=True)
class Token:
    """A scored token: what the loss needs of it, written down before the step."""

    place: int
    old: float
    weight: float
    advantage: float
    failed: bool


Played = list[tuple[Trajectory, list[Token]]]


@dataclass(frozen=True)
class Naive:
    """The same step, written down plainly: one trajectory after another through stock attention."""

    model: PreTrainedModel
    reference: PreTrainedModel
    algorithm: AlgorithmConfig
    valued: PreTrainedModel
    head: nn.Linear
    teacher: PreTrainedModel

    def loss(self, batch: Played) -> Tensor:
        return torch.stack([self._loss(trajectory, tokens, batch) for trajectory, tokens in batch if tokens]).sum()

    def value_loss(self, groups: Sequence[Group]) -> Tensor:
        """Half the squared distance of values to returns; before a step no value has moved, and none is clipped."""
        every = [trajectory for group in groups for trajectory in group.trajectories]
        paid = [reward for group in groups for reward in self._rewards(group)]
        errors = [
            self.values(trajectory) - torch.tensor(self._generalised(trajectory, reward)[1])
            for trajectory, reward in zip(every, paid, strict=True)
        ]
        return torch.cat(errors).square().mean() / 2

    def played(self, groups: Sequence[Group]) -> Played:
        """The trajectories the loss sees, each token with what is known of it before the step."""
        every = [trajectory for group in groups for trajectory in group.trajectories]
        failed = [self._has_failed(score.total) for group in groups for score in group.scores]
        found = []
        for trajectory, advantages, is_failed in zip(every, self._advantages(groups), failed, strict=True):
            columns = zip(
                self.places(trajectory),
                self.old(trajectory),
                self._corrected(trajectory),
                advantages,
                [is_failed] * len(advantages),
                strict=True,
            )
            if self.algorithm.overlong != "filter" or trajectory.stop is not StopReason.OUT_OF_TOKENS:
                found.append((trajectory, [Token(*each) for each in columns]))
        return found

    def places(self, trajectory: Trajectory) -> list[int]:
        """Of the scored tokens among those of all segments."""
        found: list[int] = []
        start = 0
        for segment in trajectory.segments:
            sampled = [start + place for place, each in enumerate(segment.sampled) if each]
            start += len(segment.ids)
            found += sampled if self.algorithm.origin_mask else range(sampled[0], start)
        return found

    def old(self, trajectory: Trajectory) -> list[float]:
        if not self.algorithm.recomputes:
            return list(trajectory.logprobs)
        return self.logprobs(self.model, trajectory).tolist()

    def logprobs(self, model: PreTrainedModel, trajectory: Trajectory) -> Tensor:
        return self._every(model, trajectory)[self.places(trajectory), self._targets(trajectory)]

    def values(self, trajectory: Trajectory) -> Tensor:
        states = torch.cat(
            [
                self.valued.base_model(input_ids=torch.tensor(segment.ids)[None]).last_hidden_state[0]
                for segment in trajectory.segments
            ]
        )
        found: Tensor = self.head(states)[[place - 1 for place in self.places(trajectory)], 0]
        return found

    def _every(self, model: PreTrainedModel, trajectory: Trajectory) -> Tensor:
        """Log probabilities of every token at every place; nothing comes before the first of a segment."""
        found = []
        for segment in trajectory.segments:
            logits = model(input_ids=torch.tensor(segment.ids)[None]).logits[0]
            every = torch.log_softmax(logits / TEMPERATURE, -1)
            found += [torch.zeros_like(every[:1]), every[:-1]]
        return torch.cat(found)

    def _targets(self, trajectory: Trajectory) -> list[int]:
        return [trajectory.ids[place] for place in self.places(trajectory)]

    def _loss(self, trajectory: Trajectory, tokens: list[Token], batch: Played) -> Tensor:
        new = self.logprobs(self.model, trajectory)
        losses = [
            self._token(logprob, token, self._ratio(new, tokens, n)) for n, (logprob, token) in _counted(new, tokens)
        ]
        total = torch.stack([token.weight * each for token, each in zip(tokens, losses, strict=True)])
        every = self._every(self.model, trajectory)[[token.place for token in tokens]]
        total = total + self.algorithm.entropy * (every.exp() * every).sum(-1)
        if self.algorithm.kl.place == "loss":
            total = total + self.algorithm.kl.coefficient * self._kl(
                new, self.logprobs(self.reference, trajectory).detach()
            )
        if self.algorithm.teacher.place == "loss":
            taught = self.logprobs(self.teacher, trajectory).detach()
            failed = torch.tensor([float(token.failed) for token in tokens])
            total = total + self.algorithm.teacher.coefficient * failed * (new - taught) ** 2 / 2
        total = total + self.algorithm.likelihood.resolved_coefficient * self._penalties(trajectory, new, tokens)
        return total.sum() * self._weight(len(tokens), batch)

    def _penalties(self, trajectory: Trajectory, new: Tensor, tokens: list[Token]) -> Tensor:
        """Of tokens that became less likely since they were sampled, one action after another."""
        settings = self.algorithm.likelihood
        drops = [token.old - logprob for logprob, token in zip(new, tokens, strict=True)]
        found = [torch.tensor(0.0)] * len(drops)
        for members in self._units(trajectory):
            good = [n for n in members if tokens[n].advantage >= 0]
            fell = settings.penalty == "llds" and sum(drops[n].item() for n in good) > 0
            for n in good:
                drifted = exp(-drops[n].item()) < settings.threshold
                if (fell and drops[n] > 0) or (settings.penalty == "sapo" and drifted and tokens[n].advantage > 0):
                    found[n] = drops[n]
        return torch.stack(found)

    def _units(self, trajectory: Trajectory) -> list[list[int]]:
        """The scored tokens of each action, which is a run of sampled tokens, or of the whole trajectory."""
        places = self.places(trajectory)
        if self.algorithm.likelihood.level == "trajectory":
            return [list(range(len(places)))]
        units: list[list[int]] = []
        for number, place in enumerate(places):
            if number and place == places[number - 1] + 1:
                units[-1].append(number)
            else:
                units.append([number])
        return units

    def _ratio(self, new: Tensor, tokens: list[Token], number: int) -> Tensor:
        """Of the token, or with GSPO of the whole trajectory."""
        differences = new - torch.tensor([token.old for token in tokens])
        return differences.mean().exp() if self.algorithm.loss == "gspo" else differences[number].exp()

    def _token(self, logprob: Tensor, token: Token, ratio: Tensor) -> Tensor:
        held = ratio.clamp(1 - self.algorithm.clip_low, 1 + self.algorithm.clip_high)
        weight = self.algorithm.negative_weight if token.advantage < 0 else 1.0
        if self.algorithm.loss == "cispo":
            return -weight * held.detach() * token.advantage * logprob
        loss = -torch.minimum(token.advantage * ratio, token.advantage * held)
        if self.algorithm.clip_dual is not None and token.advantage < 0:
            loss = torch.minimum(loss, torch.tensor(-token.advantage * self.algorithm.clip_dual))
        return weight * loss

    def _kl(self, new: Tensor, reference: Tensor) -> Tensor:
        difference = reference - new
        match self.algorithm.kl.estimator or ("k1" if self.algorithm.kl.place == "reward" else "k3"):
            case "k1":
                return -difference
            case "k2":
                return difference**2 / 2
            case "k3":
                return difference.exp() - 1 - difference

    def _charges(self, trajectory: Trajectory) -> list[float]:
        """What the distance to the reference costs, token by token."""
        if self.algorithm.kl.place != "reward":
            return [0.0 for _ in self.places(trajectory)]
        reference = self.logprobs(self.reference, trajectory).detach()
        return (self.algorithm.kl.coefficient * self._kl(torch.tensor(self.old(trajectory)), reference)).tolist()

    def _has_failed(self, paid: float) -> bool:
        return self.algorithm.teacher.policy is not None and paid < self.algorithm.teacher.reward_below

    def _fees(self, trajectory: Trajectory, paid: float) -> list[float]:
        """What the distance to the teacher costs a failed episode, token by token."""
        if not self._has_failed(paid) or self.algorithm.teacher.place != "reward":
            return [0.0 for _ in self.places(trajectory)]
        taught = self.logprobs(self.teacher, trajectory).tolist()
        distances = [old - other for old, other in zip(self.old(trajectory), taught, strict=True)]
        return [self.algorithm.teacher.coefficient * each for each in distances]

    def _corrected(self, trajectory: Trajectory) -> list[float]:
        """How much likelier the trainer finds each token than the engine, or all together, as far as that may be."""
        settings = self.algorithm.correction
        if not settings.enabled:
            return [1.0 for _ in self.places(trajectory)]
        ratios = [exp(old - said) for old, said in zip(self.old(trajectory), trajectory.logprobs, strict=True)]
        if settings.level == "sequence":
            ratios = [prod(ratios)] * len(ratios)
        if settings.action == "truncate":
            return [min(ratio, settings.high) for ratio in ratios]
        assert settings.low is not None
        return [ratio if settings.low <= ratio <= settings.high else 0.0 for ratio in ratios]

    def _rewards(self, group: Group) -> list[float]:
        if self.algorithm.overlong != "shape":
            return [score.total for score in group.scores]
        begins = CONTEXT - self.algorithm.overlong_tokens
        longest = [max(len(segment.ids) for segment in each.segments) for each in group.trajectories]
        over = [(length - begins) / self.algorithm.overlong_tokens for length in longest]
        return [score.total - min(1.0, max(0.0, each)) for score, each in zip(group.scores, over, strict=True)]

    def _advantages(self, groups: Sequence[Group]) -> list[list[float]]:
        """One for each scored token of each trajectory."""
        every = [trajectory for group in groups for trajectory in group.trajectories]
        if self.algorithm.advantage == "gae":
            paid = [reward for group in groups for reward in self._rewards(group)]
            fees = [self._fees(*each) for each in zip(every, paid, strict=True)]
            made = [self._generalised(*each)[0] for each in zip(every, paid, fees, strict=True)]
            return _spread_out(_whitened([each for one in made for each in one]), [len(one) for one in made])
        fees = [
            self._fees(each, score.total)
            for group in groups
            for each, score in zip(group.trajectories, group.scores, strict=True)
        ]
        rest = iter(fees)
        charged = [
            [
                reward - sum(self._charges(each)) - sum(next(rest))
                for each, reward in zip(group.trajectories, self._rewards(group), strict=True)
            ]
            for group in groups
        ]
        scales = [stdev(paid) + 1e-6 if self.algorithm.advantage == "grpo" else 1.0 for paid in charged for _ in paid]
        # A token is not charged for what came before it.
        return [
            [advantage + sum(fee[:number]) / scale for number in range(len(fee))]
            for advantage, fee, scale in zip(self._compared(charged), fees, scales, strict=True)
        ]

    def _compared(self, groups: list[list[float]]) -> list[float]:
        flat = [reward for paid in groups for reward in paid]
        match self.algorithm.advantage:
            case "grpo":
                return [each for paid in groups for each in _whitened(paid)]
            case "dr_grpo":
                return [each - sum(paid) / len(paid) for paid in groups for each in paid]
            case "rloo":
                return [each - (sum(paid) - each) / (len(paid) - 1) for paid in groups for each in paid]
            case "reinforce":
                return [each - sum(flat) / len(flat) for each in flat]
            case _:
                return _whitened(flat)

    def _generalised(
        self, trajectory: Trajectory, reward: float, fees: Sequence[float] = ()
    ) -> tuple[list[float], list[float]]:
        """Advantages and returns, backwards from the last sampled token, with which the reward comes."""
        settings, values = self.algorithm.critic, self.values(trajectory).tolist()
        earned = [-each for each in self._charges(trajectory)]
        earned = [each - fee for each, fee in zip(earned, fees or [0.0] * len(earned), strict=True)]
        earned[-1] += reward
        advantages = [0.0] * len(values)
        after, following = 0.0, 0.0
        for number in reversed(range(len(values))):
            error = earned[number] + settings.gamma * after - values[number]
            following = error + settings.gamma * settings.lam * following
            advantages[number], after = following, values[number]
        return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]

    def _weight(self, length: int, batch: Played) -> float:
        match self.algorithm.normalise:
            case "token":
                return 1 / sum(len(tokens) for _, tokens in batch)
            case "sequence":
                return 1 / (len(batch) * length)
            case "constant":
                return 1 / (len(batch) * self.algorithm.constant)


class Descent(Optimiser):
    """Plain momentum: AdamW would blow up the rounding of gradients that are all but zero."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model.named_parameters(), learning_rate=1e-2, weight_decay=0.0)
        self._momentum = momentum(model)

    def step(self, rate: float, clip: float) -> float:
        for group in self._momentum.param_groups:
            group["lr"] = rate
        self._momentum.step()
        return self.norm()


@pytest.fixture
def learner(tiny: Callable[..., PreTrainedModel], tokens: Tokens, tmp_path: Path) -> Callable[..., Learner]:
    """Makes a learner whose gradient is not clipped; its reference and its critic have other weights."""

    def make(algorithm: dict[str, Any] | None = None, clipping: bool = False, **train: Any) -> Learner:
        policy = Policy(tiny(seed=0), tokens)
        settings = {"learning_rate": 1e-2, "temperature": TEMPERATURE, "gradient_clip": 1e9, **train}
        known = AlgorithmConfig.model_validate(algorithm or {})
        return Learner(
            policy,
            Optimiser(policy.parameters(), learning_rate=1e-2, weight_decay=0.0) if clipping else Descent(policy.model),
            known,
            TrainConfig.model_validate(settings),
            CONTEXT,
            Policy(tiny(seed=1), tokens) if known.kl.place != "none" else None,
            critic(tmp_path / "critic", tiny(seed=2), tokens) if known.advantage == "gae" else None,
            teacher=Policy(tiny(seed=3), tokens) if known.teacher.policy is not None else None,
        )

    return make


def critic(folder: Path, model: PreTrainedModel, tokens: Tokens) -> Critic:
    Policy(model, tokens).save(folder)
    made = Critic.load(folder, torch.device("cpu"), torch.float32, CriticConfig(), TrainConfig(gradient_clip=1e9))
    drawn(made.head)
    return made


def drawn(head: nn.Linear) -> nn.Linear:
    """The head with weights that expect something."""
    nn.init.normal_(head.weight, 0.0, 0.1, generator=torch.Generator().manual_seed(0))
    nn.init.constant_(head.bias, 0.2)
    return head


@pytest.fixture
def naive(tiny: Callable[..., PreTrainedModel]) -> Callable[..., Naive]:
    def make(algorithm: dict[str, Any] | None = None) -> Naive:
        valued = tiny(seed=2, attention="eager")
        return Naive(
            tiny(seed=0, attention="eager"),
            tiny(seed=1, attention="eager"),
            AlgorithmConfig.model_validate(algorithm or {}),
            valued,
            drawn(nn.Linear(valued.config.hidden_size, 1)),
            tiny(seed=3, attention="eager"),
        )

    return make


def shift_logprobs(trajectory: Trajectory, amount: float) -> Trajectory:
    (segment,) = trajectory.segments
    shifted = replace(segment, logprobs=tuple(logprob + amount for logprob in segment.logprobs))
    return replace(trajectory, segments=(shifted,))


@pytest.fixture
def made(groups: Callable[..., list[Group]]) -> list[Group]:
    """Groups as an engine not quite like the policy sampled them; the first of each ran out of tokens."""

    def sampled(each: Trajectory, number: int) -> Trajectory:
        stop = each.stop if number else StopReason.OUT_OF_TOKENS
        return replace(shift_logprobs(each, -2.6), stop=stop)

    return [
        replace(group, trajectories=tuple(sampled(each, number) for number, each in enumerate(group.trajectories)))
        for group in groups(REWARDS)
    ]


@pytest.fixture
def rewritten(made: list[Group]) -> list[Group]:
    """The same groups of an agent that rewrote its history before the second turn: two segments, the same turns."""

    def split(each: Trajectory) -> Trajectory:
        (whole,) = each.segments
        first = whole.sampled.index(True)
        cut = whole.sampled.index(False, first)
        count = cut - first
        before = Segment(whole.ids[:cut], whole.sampled[:cut], whole.logprobs[:count], whole.versions[:count])
        edited = (whole.ids[0] + 1, *whole.ids[1:])
        origin = (False,) * cut + whole.sampled[cut:]
        return replace(each, segments=(before, Segment(edited, origin, whole.logprobs[count:], whole.versions[count:])))

    return [replace(group, trajectories=tuple(map(split, group.trajectories))) for group in made]


def learned(ours: Learner, groups: Sequence[Group], **pace: Any) -> dict[str, float]:
    """A step by the rate of the naive one, on the old logprobs the settings ask for."""
    return ours.learn(groups, StepRates(1e-2, ours.algorithm.kl.coefficient, **pace), isfinite, recompute=False)


def momentum(model: PreTrainedModel) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 2e-6) -> None:
    assert first.keys() == second.keys() != set()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=1e-4, atol=tolerance)


def moved(before: dict[str, Tensor], model: nn.Module) -> bool:
    return any(not torch.equal(before[name], after) for name, after in weights(model).items())


def _counted(new: Tensor, tokens: list[Token]) -> list[tuple[int, tuple[Tensor, Token]]]:
    return list(enumerate(zip(new, tokens, strict=True)))


def _whitened(numbers: list[float]) -> list[float]:
    mean = sum(numbers) / len(numbers)
    spread = sqrt(sum((each - mean) ** 2 for each in numbers) / (len(numbers) - 1))
    return [(each - mean) / (spread + 1e-6) for each in numbers]


def _spread_out(numbers: list[float], lengths: list[int]) -> list[list[float]]:
    rest = iter(numbers)
    return [[next(rest) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_gradient_is_that_of_the_naive_loss(
    algorithm: dict[str, Any], learner: Callable[..., Learner], naive: Callable[..., Naive], made: list[Group]
) -> None:
    ours, plain = learner(algorithm, pack_tokens=50), naive(algorithm)
    found = learned(ours, made)
    loss = plain.loss(plain.played(made))
    loss.backward()
    same(gradients(ours.policy.model), gradients(plain.model), tolerance=1e-5)
    assert found["policy/loss"] == pytest.approx(loss.item(), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_gradient_of_a_rewritten_history_is_that_of_the_naive_loss(
    algorithm: dict[str, Any], learner: Callable[..., Learner], naive: Callable[..., Naive], rewritten: list[Group]
) -> None:
    """Both segments of a trajectory train as one: its advantage, its ratio, its mean, its correction."""
    ours, plain = learner(algorithm, pack_tokens=50), naive(algorithm)
    found = learned(ours, rewritten)
    loss = plain.loss(plain.played(rewritten))
    loss.backward()
    same(gradients(ours.policy.model), gradients(plain.model), tolerance=1e-5)
    assert found["policy/loss"] == pytest.approx(loss.item(), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("several", [False, True], ids=["one segment", "two segments"])
@pytest.mark.parametrize("algorithm", ["gae", "gae, KL charged where it arises"])
def test_gradient_of_the_critic_is_that_of_the_naive_loss(
    algorithm: str,
    several: bool,
    learner: Callable[..., Learner],
    naive: Callable[..., Naive],
    made: list[Group],
    rewritten: list[Group],
) -> None:
    made = rewritten if several else made
    ours, plain = learner(ALGORITHMS[algorithm], pack_tokens=50), naive(ALGORITHMS[algorithm])
    found = learned(ours, made, critic=1e-3)
    loss = plain.value_loss(made)
    loss.backward()
    assert ours.critic is not None
    same(gradients(ours.critic.body.model.base_model), gradients(plain.valued.base_model))
    same(gradients(ours.critic.head), gradients(plain.head))
    assert found["critic/loss"] == pytest.approx(loss.item(), rel=1e-4)
    values = torch.cat([plain.values(each) for group in made for each in group.trajectories])
    assert found["critic/value"] == pytest.approx(values.mean().item(), rel=1e-4)


# Of each algorithm that leaves some tokens as they are and not others, whether the groups here have both.
@pytest.mark.parametrize(
    "name",
    [
        *("clip-higher", "dual clip", "gspo", "cispo", "tokens truncated", "sequences masked"),
        *("LLDS by action", "LLDS by trajectory", "SAPO", "SAPO with a threshold"),
    ],
)
def test_bounds_hold_some_tokens_and_not_others(
    name: str, learner: Callable[..., Learner], naive: Callable[..., Naive], made: list[Group]
) -> None:
    found, plain = learned(learner(ALGORITHMS[name]), made), naive(ALGORITHMS[name])
    weighed = [token.weight for _, tokens in plain.played(made) for token in tokens]
    if "correction" in ALGORITHMS[name]:
        dropped = sum(weight == 0 for weight in weighed) / len(weighed)
        assert found["correction/dropped"] == pytest.approx(dropped)
        assert 1 < len(set(weighed)) < len(weighed)
        assert (0 < dropped < 1) == (name == "sequences masked")
    elif "likelihood" in ALGORITHMS[name]:
        assert 0 < found["policy/likelihood_penalised"] < 0.6
        assert found["policy/likelihood_penalty"] > 0
    else:
        assert 0 < found["policy/clipped"] < 1


def test_critic_that_warms_up_learns_alone(learner: Callable[..., Learner], made: list[Group]) -> None:
    ours = learner(ALGORITHMS["gae"])
    assert ours.critic is not None
    policy, head = weights(ours.policy.model), weights(ours.critic.head)
    found = learned(ours, made, critic=1e-3, critic_only=True)
    assert not moved(policy, ours.policy.model)
    assert moved(head, ours.critic.head)
    assert found["critic/gradient_norm"] > 0
    assert "policy/loss" not in found
    again = learned(ours, made, critic=1e-3)
    assert again["critic/loss"] < found["critic/loss"]
    assert moved(policy, ours.policy.model)


def test_recomputed_logprobs_are_those_of_the_policy_itself(
    learner: Callable[..., Learner], naive: Callable[..., Naive], made: list[Group]
) -> None:
    """What the loop asks for where engine and trainer are apart is what the setting asks for."""
    asked, told = learner(), learner({"old": "recompute"})
    found = asked.learn(made, StepRates(1e-2), isfinite, recompute=True)
    learned(told, made)
    assert found["policy/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert found["policy/clipped"] == 0.0
    same(gradients(asked.policy.model), gradients(told.policy.model), tolerance=0.0)


def test_weights_after_a_step_are_those_of_the_naive_one(
    learner: Callable[..., Learner], naive: Callable[..., Naive], made: list[Group]
) -> None:
    ours, plain = learner(), naive()
    metrics = learned(ours, made)
    optimiser = momentum(plain.model)
    plain.loss(plain.played(made)).backward()
    norm = float(torch.stack([each.norm() for each in gradients(plain.model).values()]).norm())
    optimiser.step()
    assert metrics["policy/gradient_norm"] == pytest.approx(norm, rel=1e-4)
    same(weights(ours.policy.model), weights(plain.model), tolerance=1e-5)


def test_more_updates_are_as_many_steps_on_parts_of_the_batch(
    learner: Callable[..., Learner], naive: Callable[..., Naive], made: list[Group]
) -> None:
    """Old logprobs, where they are recomputed, are those before the first of them."""
    ours, plain = learner({"old": "recompute"}, updates=2), naive({"old": "recompute"})
    learned(ours, made)
    optimiser = momentum(plain.model)
    batch = plain.played(made)
    for half in (batch[:4], batch[4:]):
        optimiser.zero_grad()
        plain.loss(half).backward()
        optimiser.step()
    same(weights(ours.policy.model), weights(plain.model), tolerance=1e-5)


def test_metrics_are_means_over_the_trained_tokens(
    learner: Callable[..., Learner], naive: Callable[..., Naive], made: list[Group]
) -> None:
    algorithm = {"kl": {"place": "loss", "estimator": "k2"}}
    plain = naive(algorithm)
    found = learned(learner(algorithm), made)
    tokens = [
        (new, reference, token)
        for trajectory, known in plain.played(made)
        for new, reference, token in zip(
            plain.logprobs(plain.model, trajectory).tolist(),
            plain.logprobs(plain.reference, trajectory).tolist(),
            known,
            strict=True,
        )
    ]
    ratios = [(exp(new - token.old), token.advantage) for new, _, token in tokens]
    clipped = sum(ratio > 1.2 if advantage > 0 else ratio < 0.8 for ratio, advantage in ratios if advantage)
    count = len(tokens)
    assert found["policy/ratio"] == pytest.approx(sum(ratio for ratio, _ in ratios) / count, rel=1e-4)
    assert found["policy/clipped"] == pytest.approx(clipped / count)
    assert found["policy/kl"] == pytest.approx(sum((new - ref) ** 2 / 2 for new, ref, _ in tokens) / count, rel=1e-4)
    assert found["policy/learning_rate"] == 1e-2


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_kl_is_that_of_the_policy_before_the_first_update(
    place: str,
    learner: Callable[..., Learner],
    groups: Callable[..., list[Group]],
    tiny: Callable[..., PreTrainedModel],
) -> None:
    """It feeds the adaptive coefficient: the distance of a policy that equals its reference is 0, whatever follows."""
    made = groups([[1.0, 0.0, 0.5], [0.0, 1.0, 0.2], [0.3, 0.9, 0.1]])
    ours = learner({"kl": {"place": place}}, updates=3)
    ours = replace(ours, reference=Policy(tiny(seed=0), ours.policy.tokens))
    for step in range(3):
        expected = sum(_distance(ours, each, place) for each in made) / 3
        found = ours.learn(made, StepRates(3e-2, 1e-3), lambda _: True, recompute=True)["policy/kl"]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert (abs(expected) > 1e-3) == (step > 0)


def _distance(ours: Learner, group: Group, place: str) -> float:
    """The mean over the tokens of a mini-batch: k1 where the KL is charged in the reward, else k3."""
    rows = experience_rows(build_experiences(group.trajectories, TEMPERATURE))
    assert ours.reference is not None

    def by(scorer: Reference) -> Tensor:
        cpu = torch.device("cpu")
        return torch.cat(score_rows(rows, 10_000, cpu, ALONE, lambda each: scorer.score(each, TEMPERATURE)[0]))

    log_T = by(ours.policy) - by(ours.reference)
    return float((log_T if place == "reward" else (-log_T).expm1() + log_T).mean())


@pytest.mark.parametrize("pack_tokens", [1, 20, 45])
@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "gae", "sequences masked"])
def test_gradient_does_not_depend_on_the_packs(
    algorithm: str, pack_tokens: int, learner: Callable[..., Learner], made: list[Group]
) -> None:
    settings = ALGORITHMS[algorithm]
    small, large = learner(settings, pack_tokens=pack_tokens), learner(settings, pack_tokens=10_000)
    found, expected = learned(small, made), learned(large, made)
    same(gradients(small.policy.model), gradients(large.policy.model))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_gradient_does_not_depend_on_the_order(learner: Callable[..., Learner], made: list[Group]) -> None:
    forwards, backwards = learner(pack_tokens=30), learner(pack_tokens=30)
    turned = [Group(each.question, each.trajectories[::-1], each.scores[::-1]) for each in reversed(made)]
    learned(forwards, made)
    learned(backwards, turned)
    same(gradients(forwards.policy.model), gradients(backwards.policy.model))


def test_groups_without_spread_only_dilute_the_mean(
    learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    """Their tokens count in the divisor of the loss, as they would in a mean over all; the record leaves them out."""
    alone, beside = learner(), learner()
    spread, idle = groups([[1.0, 0.0]]), groups([[0.5, 0.5], [1.0, 1.0, 1.0]], seed=9)
    expected, found = learned(alone, spread), learned(beside, [*spread, *idle])
    counts = [sum(len(t.logprobs) for each in made for t in each.trajectories) for made in (spread, [*spread, *idle])]
    diluted = {name: each * counts[0] / counts[1] for name, each in gradients(alone.policy.model).items()}
    same(gradients(beside.policy.model), diluted)
    for name in ("policy/ratio", "policy/clipped", "policy/entropy"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)


def good_likelihood(ours: Learner, groups: Sequence[Group]) -> float:
    """Sum of the logprobs of the tokens of all trajectories above the mean of their group."""
    good = [
        trajectory
        for group in groups
        for trajectory, score in zip(group.trajectories, group.scores, strict=True)
        if score.total > sum(each.total for each in group.scores) / len(group.scores)
    ]
    experiences = build_experiences(good, TEMPERATURE)
    rows = experience_rows(experiences)
    scored = score_rows(rows, 100, torch.device("cpu"), ALONE, lambda pack: ours.policy.score(pack, TEMPERATURE)[0])
    return float(torch.cat(scored).sum())


@pytest.mark.parametrize("penalty", ["llds", "sapo"])
def test_likelihood_penalty_holds_back_the_fall_of_good_actions(
    penalty: str, learner: Callable[..., Learner], made: list[Group]
) -> None:
    """The second mini-batch is trained after the first has moved the weights; the first feels nothing but rounding."""
    settings = {"old": "recompute", "likelihood": {"penalty": penalty, "coefficient": 20.0, "threshold": 0.9999}}
    free, held = learner({"old": "recompute"}, updates=2), learner(settings, updates=2)
    one = learner(settings)
    learned(free, made)
    found = learned(held, made)
    assert learned(one, made)["policy/likelihood_penalised"] == 0.0
    assert 0 < found["policy/likelihood_penalised"] < 1
    assert good_likelihood(held, made[1:]) > good_likelihood(free, made[1:])


@pytest.mark.parametrize("mode", ["ahead", "async"])
def test_likelihood_penalty_compares_with_the_policy_that_sampled(
    mode: str, learner: Callable[..., Learner], made: list[Group]
) -> None:
    """Episodes sampled in advance have recomputed old logprobs, those of the weights that are trained."""
    settings = {"correction": {"level": "token"}, "likelihood": {"penalty": "llds", "threshold": 0.9999}}
    assert learned(learner(settings), made)["policy/likelihood_penalised"] == 0.0
    assert 0 < learned(learner(settings, mode=mode), made)["policy/likelihood_penalised"] < 1


@pytest.mark.parametrize(
    "settings",
    [{}, {"kl": {"place": "loss"}}, {"entropy": 0.1}, {"likelihood": {"penalty": "llds"}}],
    ids=str,
)
def test_without_any_advantage_only_other_terms_move_the_weights(
    settings: dict[str, Any], learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    ours = learner(settings)
    learned(ours, groups(REWARDS))
    before = weights(ours.policy.model)
    found = learned(ours, groups([[1.0, 1.0], [0.0, 0.0]], seed=3))
    assert moved(before, ours.policy.model) == bool(settings)
    assert ("policy/entropy" in found) == bool(settings)


def all_unlikely(group: Group) -> Group:
    """As an engine sampled it that found every token next to impossible."""
    told = [shift_logprobs(each, -50.0) for each in group.trajectories]
    return replace(group, trajectories=tuple(told))


def all_paid_cut(group: Group) -> Group:
    """What was paid for ran out of tokens."""
    stops = [StopReason.OUT_OF_TOKENS if score.total else StopReason.ANSWERED for score in group.scores]
    told = [replace(each, stop=stop) for each, stop in zip(group.trajectories, stops, strict=True)]
    return replace(group, trajectories=tuple(told))


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({"correction": {"level": "token", "action": "mask", "low": 1e-6, "high": 1e6}}, all_unlikely),
        ({"negative_weight": 0.0, "overlong": "filter"}, all_paid_cut),
    ],
    ids=["a correction drops every token", "what is left is worse than the mean and weighs nothing"],
)
def test_mini_batch_without_gradient_makes_no_step(
    settings: dict[str, Any],
    change: Callable[[Group], Group],
    learner: Callable[..., Learner],
    groups: Callable[..., list[Group]],
) -> None:
    """It would follow the momentum of the steps before."""
    ours = learner(settings)
    start = weights(ours.policy.model)
    learned(ours, groups([[1.0, 0.0], [0.0, 1.0]]))
    assert moved(start, ours.policy.model)
    before = weights(ours.policy.model)
    found = learned(ours, [change(group) for group in groups([[1.0, 0.0], [0.0, 1.0]], seed=3)])
    assert not moved(before, ours.policy.model)
    assert "policy/loss" not in found


@pytest.mark.parametrize("advantage", ["grpo", "reinforce", "reinforce_pp"])
def test_rewards_may_be_whole_numbers(
    advantage: str, learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    whole, real = (learner({"advantage": advantage}) for _ in range(2))
    learned(real, groups([[1.0, 0.0], [2.0, 0.0]]))
    learned(whole, groups([[1, 0], [2, 0]]))
    same(weights(whole.policy.model), weights(real.policy.model), tolerance=0.0)


def test_loss_of_the_users_own_may_move_the_weights_without_an_advantage(
    learner: Callable[..., Learner], groups: Callable[..., list[Group]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_loss.py").write_text(
        "from sleuth.algorithms.loss import TokenLoss\n"
        "def likelier(sampled, bounds):\n"
        "    return TokenLoss(-sampled.logprob_T, {})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ours = learner({"loss": "import:own_loss.likelier"})
    before = weights(ours.policy.model)
    learned(ours, groups([[1.0, 1.0], [0.0, 0.0]]))
    assert moved(before, ours.policy.model)


@pytest.mark.parametrize(
    "settings",
    [{"advantage": "reinforce", "kl": {"place": place}} for place in ("none", "loss", "reward")]
    + [{"advantage": "gae"}, {"correction": {"level": "sequence"}}],
    ids=str,
)
def test_trajectories_without_sampled_tokens_teach_nothing(
    settings: dict[str, Any],
    learner: Callable[..., Learner],
    trajectory: Callable[..., Trajectory],
    groups: Callable[..., list[Group]],
) -> None:
    """A prompt that fills the context leaves no room to sample, and no reason to fail."""
    ours = learner(settings, pack_tokens=1)
    (group,) = groups([[0.0, 1.0]])
    silent = trajectory((3, 4), (False, False))
    before = weights(ours.policy.model)
    learned(ours, [Group(group.question, (silent, silent), group.scores)])
    assert not moved(before, ours.policy.model)


@pytest.mark.parametrize("settings", [{}, {"overlong": "filter"}], ids=str)
def test_trajectories_that_all_ran_out_of_tokens_teach_where_they_are_heard(
    settings: dict[str, Any], learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    ours, (group,) = learner(settings), groups([[1.0, 0.0]])
    cut = tuple(replace(each, stop=StopReason.OUT_OF_TOKENS) for each in group.trajectories)
    before = weights(ours.policy.model)
    found = learned(ours, [replace(group, trajectories=cut)])
    assert moved(before, ours.policy.model) == (not settings)
    assert ("policy/loss" in found) == (not settings)


def test_gradient_that_is_no_number_leaves_the_weights(
    learner: Callable[..., Learner], groups: Callable[..., list[Group]]
) -> None:
    ours = learner()
    before = weights(ours.policy.model)
    assert isnan(learned(ours, groups([[inf, 0.0]]))["policy/gradient_norm"])
    assert not moved(before, ours.policy.model)


def test_update_that_is_not_admitted_leaves_the_weights_and_the_next_is_made(
    learner: Callable[..., Learner], naive: Callable[..., Naive], made: list[Group]
) -> None:
    """Of two mini-batches the first is refused: what the second changes is all that changes."""
    norms: list[float] = []

    def second(norm: float) -> bool:
        norms.append(norm)
        return len(norms) == 2

    ours, plain = learner(updates=2), naive()
    found = ours.learn(made, StepRates(1e-2), second, recompute=False)
    assert found["policy/gradient_norm"] == pytest.approx(sum(norms) / 2)
    plain.loss(plain.played(made)[4:]).backward()
    momentum(plain.model).step()
    same(weights(ours.policy.model), weights(plain.model), tolerance=1e-5)


def test_gradient_is_scaled_down_to_its_limit(learner: Callable[..., Learner], made: list[Group]) -> None:
    ours = learner(clipping=True, gradient_clip=1e-3)
    norm = learned(ours, made)["policy/gradient_norm"]
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
    assert [StepRates.at(step, train, CriticConfig(), 0.0, 1.0).policy / 2.0 for step in range(4)] == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [(None, [0.25, 0.5, 0.5, 0.25]), (0.5, [0.5, 0.75, 0.5, 0.25]), (0.0, [1.0, 0.75, 0.5, 0.25])],
)
def test_rate_of_the_critic_may_rise_in_steps_of_its_own(own: float | None, expected: list[float]) -> None:
    train = TrainConfig(steps=4, warmup=1.0, decay=1.0)
    critic = CriticConfig(learning_rate=8.0, rate_warmup=own)
    assert [StepRates.at(step, train, critic, 0.0, 1.0).critic / 8.0 for step in range(4)] == expected


@pytest.mark.parametrize(
    ("harmed", "value", "found"),
    [
        ("policy", math.nan, "the weights of the policy"),
        ("critic", math.inf, "the weights of the critic"),
        ("policy", 1e30, "the logprobs of the policy"),
        ("policy", 1.0, ""),
    ],
)
def test_what_an_update_broke_is_named(
    harmed: str, value: float, found: str, learner: Callable[..., Learner], made: list[Group]
) -> None:
    """Weights that are finite can be too large to compute with."""
    ours = learner({"advantage": "gae"})
    assert ours.critic is not None
    model = ours.policy.model if harmed == "policy" else ours.critic.head
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.view(-1)[-1:] = value
    assert ours.find_non_finite(made) == found
