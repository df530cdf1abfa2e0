"""One step of learning: groups of scored episodes become a change of the weights.

Suffixes: N trajectories, T sampled tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from sleuth.algorithms import advantage, kl, loss
from sleuth.algorithms.normalise import token_weights
from sleuth.config import AlgorithmConfig, TrainConfig
from sleuth.hooks import chosen
from sleuth.records import Group, Trajectory
from sleuth.train import guards
from sleuth.train.packing import Pack, Row, pack, row_of
from sleuth.train.policy import Policy

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Learner:
    """The policy with its optimiser, and the frozen reference where KL needs one."""

    policy: Policy
    optimiser: torch.optim.Optimizer
    reference: Policy | None
    algorithm: AlgorithmConfig
    train: TrainConfig

    def __post_init__(self) -> None:
        # Found here, a wrong name is found before the first episode.
        chosen("algorithm.advantage", self.algorithm.advantage, advantage.ADVANTAGES)
        chosen("algorithm.loss", self.algorithm.loss, loss.LOSSES)

    def learn(self, groups: Sequence[Group], step: int) -> Metrics:
        """Updates the weights on the groups; returns what there is to record."""
        rate = learning_rate(self.train, step)
        for setting in self.optimiser.param_groups:
            setting["lr"] = rate
        batches = _split(list(self._rows(groups)), self.train.updates)
        tallies = [tally for tally in map(self._update, batches) if tally]
        mean = {name: sum(tally[name] for tally in tallies) / len(tallies) for name in tallies[0]} if tallies else {}
        return {**mean, "policy/learning_rate": rate}

    def _rows(self, groups: Sequence[Group]) -> Iterator[Row]:
        """Every trajectory with its advantage; weights come with the mini-batch."""
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        rewards_N = torch.tensor([score.total for group in groups for score in group.scores])
        keys_N = torch.tensor([key for key, group in enumerate(groups) for _ in group.trajectories])
        if self.algorithm.kl.place == "reward":
            rewards_N = kl.charge(rewards_N, self._divergence(trajectories), self.algorithm.kl.coefficient)
        advantages_N = chosen("algorithm.advantage", self.algorithm.advantage, advantage.ADVANTAGES)(rewards_N, keys_N)
        for trajectory, each in zip(trajectories, advantages_N.tolist(), strict=True):
            yield row_of(trajectory, each, 1.0)

    def _update(self, rows: Sequence[Row]) -> Metrics:
        """One mini-batch: the loss is summed over packs, whose weights were made for the whole of it.

        Where no row can change the weights they stay as they are, and there is nothing to record.
        """
        moving = self._moving(self._weighed(rows))
        if not moving:
            return {}
        self.optimiser.zero_grad(set_to_none=True)
        tally: Metrics = {}
        for each in pack(moving, self.train.pack_tokens, self.policy.device):
            value, metrics = self._loss(each)
            value.backward()
            for name, amount in metrics.items():
                tally[name] = tally.get(name, 0.0) + amount
        trained = tally.pop("weight")
        means = {f"policy/{name}": amount / trained for name, amount in tally.items()}
        norm = float(torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.train.gradient_clip))
        guards.gradient(norm)
        self.optimiser.step()
        return {**means, "policy/gradient_norm": norm}

    def _moving(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that can change the weights: those with sampled tokens and an advantage.

        KL in the loss, or a loss that is not of our table, may move the weights without an advantage too.
        """
        every = self.algorithm.kl.place == "loss" or self.algorithm.loss not in loss.LOSSES
        return [row for row in rows if row.old and (row.advantage or every)]

    def _weighed(self, rows: Sequence[Row]) -> list[Row]:
        lengths_N = torch.tensor([len(row.old) for row in rows], dtype=torch.float64)
        weights_N = token_weights(lengths_N, self.algorithm.normalise, self.algorithm.constant)
        return [
            replace(row, weights=tuple(weight * each for each in row.weights))
            for row, weight in zip(rows, weights_N.tolist(), strict=True)
        ]

    def _loss(self, packed: Pack) -> tuple[Tensor, Metrics]:
        """The weighted loss of a pack, and the weighted sum of each thing to record."""
        logprob_T, entropy_T = self.policy.score(packed, self.train.temperature)
        policy_loss = chosen("algorithm.loss", self.algorithm.loss, loss.LOSSES)
        settings = self.algorithm
        tokens = policy_loss(
            logprob_T, packed.old_T, packed.advantage_T, settings.clip_low, settings.clip_high, settings.negative_weight
        )
        value_T = tokens.value_T
        metrics = {**tokens.metrics, "entropy": entropy_T, "weight": torch.ones_like(entropy_T)}
        if settings.kl.place == "loss":
            kl_T = kl.ESTIMATORS[settings.kl.estimator](logprob_T, self._reference(packed))
            value_T = value_T + settings.kl.coefficient * kl_T
            metrics["kl"] = kl_T
        sums = {name: float((packed.weight_T * each.detach()).sum()) for name, each in metrics.items()}
        return (packed.weight_T * value_T).sum(), sums

    def _divergence(self, trajectories: Sequence[Trajectory]) -> Tensor:
        """The KL estimate of each trajectory, summed over its sampled tokens."""
        sums_N = torch.zeros(len(trajectories))
        rows = [row_of(trajectory, 0.0, 1.0) for trajectory in trajectories]
        for packed in pack(rows, self.train.pack_tokens, self.policy.device):
            kl_T = kl.ESTIMATORS[self.algorithm.kl.estimator](packed.old_T, self._reference(packed))
            sums_N[list(packed.rows)] = torch.stack([part.sum() for part in kl_T.cpu().split(packed.scored)])
        return sums_N

    @torch.no_grad()
    def _reference(self, packed: Pack) -> Tensor:
        assert self.reference is not None  # noqa: S101  assembled whenever KL has a place
        return self.reference.score(packed, self.train.temperature)[0]


def learning_rate(train: TrainConfig, step: int) -> float:
    """Linear warm-up over the first share of the steps, linear decay to zero over the last."""
    done = (step + 1) / train.steps
    rising = min(1.0, done / train.warmup) if train.warmup else 1.0
    falling = min(1.0, (1.0 - step / train.steps) / train.decay) if train.decay else 1.0
    return train.learning_rate * min(rising, falling)


def _split(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """Nearly equal consecutive mini-batches, none of them empty."""
    parts = min(parts, len(rows))
    bounds = [len(rows) * part // parts for part in range(parts + 1)]
    return [list(rows[low:high]) for low, high in pairwise(bounds)]
