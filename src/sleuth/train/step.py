"""One step of learning: groups of scored episodes become a change of the weights.

Suffixes: N trajectories, L tokens of a trajectory, S scored tokens of one, T scored tokens of a pack.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from sleuth.algorithms import kl, loss
from sleuth.algorithms.correction import correct
from sleuth.algorithms.gae import clipped_value
from sleuth.algorithms.loss import Bounds, Sampled
from sleuth.algorithms.normalise import token_weights
from sleuth.config.algorithm import AlgorithmConfig, CriticConfig
from sleuth.config.train import TrainConfig
from sleuth.records import Group, Trajectory
from sleuth.train import objective
from sleuth.train.clock import Clock
from sleuth.train.credit import Paid, credited, heard, shaped
from sleuth.train.critic import Critic
from sleuth.train.learned import Learned
from sleuth.train.optimiser import Optimiser
from sleuth.train.packing import WEIGHT, Pack, Row
from sleuth.train.policy import Policy
from sleuth.train.ranks import ALONE, Ranks
from sleuth.train.reference import Reference
from sleuth.train.sharing import packs, scored

Metrics = dict[str, float]
Admits = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Pace:
    """What a step learns with: the rates of policy and critic, the weight of KL, and whether the policy waits."""

    rate: float
    kl: float = 0.0
    critic_rate: float = 0.0
    critic_only: bool = False


@dataclass(frozen=True, slots=True)
class Learner:
    """The policy with its optimiser, and the critic and the reference where the algorithm needs them.

    `context` is the number of tokens an episode may have.
    """

    policy: Policy
    optimiser: Optimiser
    algorithm: AlgorithmConfig
    train: TrainConfig
    context: int
    reference: Reference | None = None
    critic: Critic | None = None
    ranks: Ranks = ALONE
    clock: Clock = field(default_factory=Clock)
    learned: Learned = field(default_factory=Learned)

    def __post_init__(self) -> None:
        # Found here, a wrong name is found before the first episode.
        objective.require(self.algorithm)

    def learn(self, groups: Sequence[Group], pace: Pace, admits: Admits, recompute: bool) -> Metrics:
        """Updates the weights on the groups; returns what there is to record.

        `admits` is asked, with the norm of the gradient, whether an update is made. With `recompute` the old logprobs
        are the trainer's own, else the engine's.
        """
        paid = _paid(groups)
        rows = [_row(each, self.algorithm.origin_mask) for each in paid.trajectories]
        with self.clock.part("score"):
            recomputed = recompute or self.algorithm.recomputes
            rows = self._aged(rows, recomputed)
            rows, metrics = self._corrected(rows)
            rows = self._referred(rows)
            rows = self._valued(rows)
        rewards_N = shaped(paid, self.algorithm, self.context)
        rows = credited(rows, rewards_N, paid.keys_N, self.algorithm, pace.kl)
        self.learned.credit(paid.trajectories, rows)
        keep = [heard(each, self.algorithm) for each in paid.trajectories]
        tallies = [
            self._update(batch, pace, admits)
            for batch in _split([row for row, kept in zip(rows, keep, strict=True) if kept], self.train.updates)
        ]
        return {**metrics, **_drift(rows, tallies, recomputed), **_means(tallies), "policy/learning_rate": pace.rate}

    def broken(self, groups: Sequence[Group]) -> str:
        """What an update left that is not finite, in words: weights, or what the policy computes; empty where all is.

        Weights that are finite can be too large to compute with: the shortest trajectory is scored.
        """
        optimisers = {"policy": self.optimiser} | ({} if self.critic is None else {"critic": self.critic.optimiser})
        mine = [f"the weights of the {name}" for name, each in optimisers.items() if not each.finite()]
        found = [each for theirs in self.ranks.gather(mine, "the check of the weights") for each in theirs]
        if found:
            return found[0]
        shortest = min((each for group in groups for each in group.trajectories), key=lambda each: len(each.ids))
        with self.clock.part("score"):
            (logprob_S,) = self._scored(
                [_row(shortest, self.algorithm.origin_mask)],
                lambda packed: self.policy.score(packed, self.train.temperature)[0],
            )
        return "" if bool(logprob_S.isfinite().all()) else "the logprobs of the policy"

    def _aged(self, rows: Sequence[Row], recompute: bool) -> list[Row]:
        """The column old: what the policy made of each token before this step."""
        if not recompute:
            return [row.with_columns(old=row.columns["rollout"]) for row in rows]
        found = self._scored(rows, lambda packed: self.policy.score(packed, self.train.temperature)[0])
        return [row.with_columns(old=old_S) for row, old_S in zip(rows, found, strict=True)]

    def _corrected(self, rows: Sequence[Row]) -> tuple[list[Row], Metrics]:
        """The column correction: what a token weighs because another policy sampled it."""
        settings = self.algorithm.correction
        if settings.level == "auto" or settings.level == "none":
            return list(rows), {}
        lengths = [len(row.places_S) for row in rows]
        found = correct(
            torch.cat([row.columns["old"] for row in rows]),
            torch.cat([row.columns["rollout"] for row in rows]),
            torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths)),
            level=settings.level,
            action=settings.action,
            low=settings.low,
            high=settings.high,
            veto=settings.veto,
        )
        parts = found.weight_T.split(lengths)
        corrected = [row.with_columns(correction=part) for row, part in zip(rows, parts, strict=True)]
        return corrected, {f"correction/{name}": value for name, value in found.metrics.items()}

    def _referred(self, rows: Sequence[Row]) -> list[Row]:
        """The column reference, where the distance to it is charged."""
        reference = self.reference
        if reference is None:
            return list(rows)
        found = self._scored(rows, lambda packed: reference.score(packed, self.train.temperature)[0])
        return [row.with_columns(reference=reference_S) for row, reference_S in zip(rows, found, strict=True)]

    def _valued(self, rows: Sequence[Row]) -> list[Row]:
        """The column value, where there is a critic."""
        critic = self.critic
        if critic is None:
            return list(rows)
        found = self._scored(rows, critic.values)
        return [row.with_columns(value=value_S) for row, value_S in zip(rows, found, strict=True)]

    def _scored(self, rows: Sequence[Row], score: Callable[[Pack], Tensor]) -> list[Tensor]:
        return scored(rows, self.train.pack_tokens, self.policy.device, self.ranks, score)

    def _update(self, rows: Sequence[Row], pace: Pace, admits: Admits) -> Metrics:
        """One mini-batch: the loss is summed over packs, whose weights were made for the whole of it."""
        weighed = [row for row in self._weighed(rows) if len(row.places_S)]
        self.learned.weigh(weighed)
        metrics: Metrics = {}
        if self.critic is not None and weighed:
            metrics |= self._descend(weighed, self.critic.optimiser, self._value_loss, pace.critic_rate, isfinite)
            metrics = {name.replace("policy/", "critic/"): value for name, value in metrics.items()}
        moving = [] if pace.critic_only else [row for row in weighed if self._moves(row)]
        if moving:
            metrics |= self._descend(moving, self.optimiser, lambda each: self._loss(each, pace), pace.rate, admits)
            self.learned.settle(moving, self.ranks)
        return metrics

    def _descend(
        self,
        rows: Sequence[Row],
        optimiser: Optimiser,
        loss_of: Callable[[Pack], tuple[Tensor, Mapping[str, Tensor]]],
        rate: float,
        admits: Admits,
    ) -> Metrics:
        """Gradients of every pack, and a step down; figures stay on the device until the end."""
        optimiser.zero()
        sums: dict[str, Tensor] = {}
        with self.clock.part("train"):
            for packed in packs(rows, self.train.pack_tokens, self.policy.device, self.ranks):
                self.clock.count("train/tokens", len(packed.ids_N))
                value, metrics = loss_of(packed)
                value.backward()
                for name, each in {**metrics, "loss": value.detach()}.items():
                    sums[name] = sums[name] + each if name in sums else each
            totals = self._totals(sums)
        with self.clock.part("optimiser"):
            norm = optimiser.norm()
            if admits(norm):
                optimiser.step(rate, self.train.gradient_clip)
        trained, summed = totals.pop(WEIGHT), totals.pop("loss")
        means = {f"policy/{name}": total / trained for name, total in totals.items()}
        return {**means, "policy/loss": summed, "policy/gradient_norm": norm}

    def _totals(self, sums: Mapping[str, Tensor]) -> Metrics:
        """The sums over the packs of every rank, read from the device at once."""
        read = dict(zip(sums, torch.stack([each.float() for each in sums.values()]).tolist(), strict=True))
        every = [theirs for (theirs,) in self.ranks.gather([read], "the sums of an update")]
        return {name: sum(theirs[name] for theirs in every) for name in read}

    def _moves(self, row: Row) -> bool:
        """Whether a row can change the weights; other terms, or a loss of the user's own, may without an advantage.

        A mini-batch of which none can makes no step, in which the optimiser would follow its earlier ones.
        """
        settings = self.algorithm
        if settings.kl.place == "loss" or settings.entropy > 0 or settings.loss not in loss.LOSSES:
            return True
        advantage_S = row.columns["advantage"] * row.columns.get("correction", torch.ones(()))
        return bool((advantage_S > 0 if settings.negative_weight == 0 else advantage_S != 0).any())

    def _weighed(self, rows: Sequence[Row]) -> list[Row]:
        lengths_N = torch.tensor([len(row.places_S) for row in rows], dtype=torch.float64)
        weights_N = token_weights(lengths_N, self.algorithm.normalise, self.algorithm.constant)
        return [
            row.with_columns(**{WEIGHT: row.columns[WEIGHT] * weight})
            for row, weight in zip(rows, weights_N.tolist(), strict=True)
        ]

    def _loss(self, packed: Pack, pace: Pace) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The weighted loss of a pack, and the weighted sum of each thing to record."""
        settings, columns = self.algorithm, packed.columns
        logprob_T, entropy_T = self.policy.score(packed, self.train.temperature)
        self.learned.see(packed, logprob_T - columns["old"])
        bounds = Bounds(settings.clip_low, settings.clip_high, settings.clip_dual, settings.negative_weight)
        sampled = Sampled(logprob_T, columns["old"], columns["advantage"], packed.row_T)
        tokens = objective.policy_loss(settings, sampled, bounds)
        value_T = tokens.value_T * columns["correction"] if "correction" in columns else tokens.value_T
        apart_T = kl.k3(columns["old"], logprob_T.detach())
        metrics = {**tokens.metrics, "k3": apart_T, "entropy": entropy_T, WEIGHT: torch.ones_like(entropy_T)}
        if settings.entropy:
            value_T = value_T - settings.entropy * entropy_T
        if self.reference is not None:
            distance = kl.ESTIMATORS[settings.kl.resolved_estimator]
            kl_T = distance(logprob_T, columns["reference"])
            # Recorded is the distance before the first update, which the adaptive coefficient reads.
            metrics["kl"] = kl_T if self.train.updates == 1 else distance(columns["old"], columns["reference"])
            if settings.kl.place == "loss":
                value_T = value_T + pace.kl * kl_T
        return (columns[WEIGHT] * value_T).sum(), _weighted(columns[WEIGHT], metrics)

    def _value_loss(self, packed: Pack) -> tuple[Tensor, Mapping[str, Tensor]]:
        assert self.critic is not None  # noqa: S101  only called where there is one
        columns = packed.columns
        tokens = clipped_value(
            self.critic.values(packed), columns["value"], columns["return"], self.algorithm.critic.clip
        )
        metrics = {**tokens.metrics, WEIGHT: torch.ones_like(columns["value"])}
        return (columns[WEIGHT] * tokens.value_T).sum(), _weighted(columns[WEIGHT], metrics)


def learning_rate(train: TrainConfig, step: int) -> float:
    """Linear warm-up over the first share of the steps, linear decay to zero over the last."""
    return train.learning_rate * _share_of_rate(train, train.warmup, step)


def critic_rate(train: TrainConfig, critic: CriticConfig, step: int) -> float:
    """The same for the critic, whose warm-up may be another."""
    warmup = train.warmup if critic.rate_warmup is None else critic.rate_warmup
    return critic.learning_rate * _share_of_rate(train, warmup, step)


def _share_of_rate(train: TrainConfig, warmup: float, step: int) -> float:
    done = (step + 1) / train.steps
    rising = min(1.0, done / warmup) if warmup else 1.0
    falling = min(1.0, (1.0 - step / train.steps) / train.decay) if train.decay else 1.0
    return min(rising, falling)


def _paid(groups: Sequence[Group]) -> Paid:
    return Paid(
        [trajectory for group in groups for trajectory in group.trajectories],
        # A reward of the user's own may be a whole number, of which there is no mean.
        torch.tensor([score.total for group in groups for score in group.scores], dtype=torch.float32),
        torch.tensor([key for key, group in enumerate(groups) for _ in group.trajectories]),
    )


def _row(trajectory: Trajectory, sampled_only: bool) -> Row:
    """A trajectory as a row; its sampled tokens are scored, or all from the first of them on."""
    # By way of numpy, which reads Python's numbers several times faster.
    ids_L = torch.from_numpy(np.array(trajectory.ids, dtype=np.int64))
    sampled_L = torch.from_numpy(np.array(trajectory.sampled, dtype=np.bool_))
    if not sampled_only:
        # Retrieved text is trained on too, the prompt is not.
        sampled_L = sampled_L.cumsum(0) > 0
    places_S = sampled_L.nonzero()[:, 0]
    columns = {WEIGHT: torch.ones(len(places_S))}
    return Row(ids_L, places_S, columns | ({"rollout": torch.tensor(trajectory.logprobs)} if sampled_only else {}))


def _drift(rows: Sequence[Row], tallies: Sequence[Metrics], recomputed: bool) -> Metrics:
    """How far the engine's logprobs are from the trainer's before the first update changes these."""
    if not recomputed:
        found = tallies[0].get("policy/k3") if tallies else None
        return {} if found is None else {"parity/k3": found}
    pairs = [(row.columns["old"], row.columns["rollout"]) for row in rows if "rollout" in row.columns]
    apart = torch.cat([kl.k3(rollout, old) for old, rollout in pairs]) if pairs else torch.empty(0)
    return {"parity/k3": float(apart.mean())} if len(apart) else {}


def _weighted(weight_T: Tensor, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: (weight_T * each.detach()).sum() for name, each in metrics.items()}


def _means(tallies: Sequence[Metrics]) -> Metrics:
    """The mean of each figure over the mini-batches that have it."""
    names = dict.fromkeys(name for tally in tallies for name in tally)
    return {
        name: sum(tally[name] for tally in tallies if name in tally) / sum(name in tally for tally in tallies)
        for name in names
    }


def _split(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """Nearly equal consecutive mini-batches, none of them empty."""
    parts = min(parts, len(rows))
    bounds = [len(rows) * part // parts for part in range(parts + 1)] if parts else []
    return [list(rows[low:high]) for low, high in pairwise(bounds)]
