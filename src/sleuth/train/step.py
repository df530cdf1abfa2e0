"""One training step: update the weights on groups of scored trajectories.

Suffixes: N trajectories, L tokens of a trajectory, S scored tokens of a trajectory, T scored tokens of a pack.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from sleuth.algorithms import kl, loss
from sleuth.algorithms.gae import clipped_value
from sleuth.algorithms.loss import Bounds, Sampled
from sleuth.algorithms.normalise import token_weights
from sleuth.config.algorithm import AlgorithmConfig, CriticConfig
from sleuth.config.train import TrainConfig
from sleuth.config.tree import Config
from sleuth.model.packing import WEIGHT, Pack, Row
from sleuth.model.policy import Policy, Reference
from sleuth.records import Group, Trajectory
from sleuth.train import objective
from sleuth.train.credit import RewardBatch, attach_advantages, attach_turn_rewards, is_trained_on, shape_rewards
from sleuth.train.metrics import Metrics, Timer, TokenLog
from sleuth.train.models import Critic, load_critic, load_reference, load_trained_policy
from sleuth.train.optimiser import Optimiser
from sleuth.train.ranks import ALONE, Ranks, require_supported
from sleuth.train.sharding import rank_packs, score_rows

AllowUpdate = Callable[[float], bool]  # given the gradient norm


@dataclass(frozen=True, slots=True)
class StepRates:
    """Learning rates and KL coefficient of a step; with `critic_only`, the policy is not updated."""

    policy: float
    kl: float = 0.0
    critic: float = 0.0
    critic_only: bool = False

    @classmethod
    def at(
        cls, step: int, train: TrainConfig, critic: CriticConfig, kl_coefficient: float, scale: float
    ) -> "StepRates":
        """Compute the scheduled rates of a step; learning rates are multiplied by `scale`."""

        def schedule(warmup: float) -> float:
            """Linear warm-up over the first fraction of the steps, linear decay to zero over the last fraction."""
            rising = min(1.0, (step + 1) / train.steps / warmup) if warmup else 1.0
            falling = min(1.0, (1.0 - step / train.steps) / train.decay) if train.decay else 1.0
            return min(rising, falling)

        policy = train.learning_rate * schedule(train.warmup) * scale
        warmup = train.warmup if critic.rate_warmup is None else critic.rate_warmup
        return cls(policy, kl_coefficient, critic.learning_rate * schedule(warmup) * scale, step < critic.warmup)


@dataclass(frozen=True, slots=True)
class Learner:
    """The policy and its optimiser, with a critic and a reference if the algorithm needs them.

    `context` is the maximum number of tokens of an episode.
    """

    policy: Policy
    optimiser: Optimiser
    algorithm: AlgorithmConfig
    train: TrainConfig
    context: int
    reference: Reference | None = None
    critic: Critic | None = None
    ranks: Ranks = ALONE
    timer: Timer = field(default_factory=Timer)
    token_log: TokenLog = field(default_factory=TokenLog)

    def __post_init__(self) -> None:
        objective.require(self.algorithm)  # reject an unknown name before the first episode

    @classmethod
    def build(cls, config: Config, ranks: Ranks) -> "Learner":
        """Load the models of a run and create the optimiser."""
        require_supported(config, ranks.world)
        policy = load_trained_policy(config, ranks)
        reference = load_reference(config, policy, ranks)
        critic = load_critic(config, policy, ranks)
        optimiser = Optimiser.build(policy.model.named_parameters(), config.train, config.train.learning_rate)
        context = config.agent.context_tokens
        return cls(policy, optimiser, config.algorithm, config.train, context, reference, critic, ranks)

    @property
    def critic_optimiser(self) -> Optimiser | None:
        return None if self.critic is None else self.critic.optimiser

    def learn(self, groups: Sequence[Group], rates: StepRates, allow_update: AllowUpdate, recompute: bool) -> Metrics:
        """Update the weights on the groups and return metrics.

        With `recompute`, the trainer recomputes the old log-probabilities instead of using the engine's.
        """
        batch = RewardBatch.of(groups)
        rows = [_row(each, self.algorithm.origin_mask) for each in batch.trajectories]
        recompute = recompute or self.algorithm.recomputes
        with self.timer.time("score"):
            if recompute:
                rows = self._attach("old", rows, self._policy_logprobs)
            else:
                rows = [row.with_columns(old=row.columns["rollout"]) for row in rows]
            rows, metrics = self._attach_corrections(rows)
            if reference := self.reference:
                rows = self._attach("reference", rows, lambda pack: reference.score(pack, self.train.temperature)[0])
            if self.critic is not None:
                rows = self._attach("value", rows, self.critic.values)
        rewards_N = shape_rewards(batch, self.algorithm, self.context)
        rows = attach_turn_rewards(rows, batch)
        rows = attach_advantages(rows, rewards_N, batch.groups_N, self.algorithm, rates.kl)
        self.token_log.start(batch.trajectories, rows)
        pairs = zip(batch.trajectories, rows, strict=True)
        trained = [row for trajectory, row in pairs if is_trained_on(trajectory, self.algorithm)]
        # Nearly equal consecutive mini-batches, none of them empty.
        count = min(self.train.updates, len(trained))
        bounds = pairwise(len(trained) * part // count for part in range(count + 1)) if count else ()
        updates = [self._update(trained[low:high], rates, allow_update) for low, high in bounds]
        drift = _engine_drift(rows, updates, recompute)
        values: dict[str, list[float]] = defaultdict(list)
        for update in updates:
            for name, value in update.items():
                values[name].append(value)
        means = {name: sum(each) / len(each) for name, each in values.items()}
        return {**metrics, **drift, **means, "policy/learning_rate": rates.policy}

    def find_non_finite(self, groups: Sequence[Group]) -> str:
        """Return what became non-finite in an update, the weights or their log-probabilities; "" if nothing did."""
        optimisers = {"policy": self.optimiser, "critic": self.critic_optimiser}
        mine = [f"the weights of the {name}" for name, each in optimisers.items() if each and not each.finite()]
        if found := [each for theirs in self.ranks.gather(mine, "the check of the weights") for each in theirs]:
            return found[0]
        # Finite weights can still overflow in the forward pass: score the shortest trajectory.
        shortest = min((each for group in groups for each in group.trajectories), key=lambda each: len(each.ids))
        with self.timer.time("score"):
            (logprob_S,) = self._score([_row(shortest, self.algorithm.origin_mask)], self._policy_logprobs)
        return "" if bool(logprob_S.isfinite().all()) else "the logprobs of the policy"

    def _attach_corrections(self, rows: Sequence[Row]) -> tuple[list[Row], Metrics]:
        """Add the column correction: the off-policy weight of each token."""
        settings = self.algorithm.correction
        if not settings.enabled:
            return list(rows), {}
        lengths = [len(row.positions_S) for row in rows]
        found = objective.correct(
            settings,
            torch.cat([row.columns["old"] for row in rows]),
            torch.cat([row.columns["rollout"] for row in rows]),
            torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths)),
        )
        parts = found.weight_T.split(lengths)
        corrected = [row.with_columns(correction=part) for row, part in zip(rows, parts, strict=True)]
        return corrected, {f"correction/{name}": value for name, value in found.metrics.items()}

    def _attach(self, column: str, rows: Sequence[Row], score: Callable[[Pack], Tensor]) -> list[Row]:
        values = self._score(rows, score)
        return [row.with_columns(**{column: value_S}) for row, value_S in zip(rows, values, strict=True)]

    def _score(self, rows: Sequence[Row], score: Callable[[Pack], Tensor]) -> list[Tensor]:
        return score_rows(rows, self.train.pack_tokens, self.policy.device, self.ranks, score)

    def _policy_logprobs(self, packed: Pack) -> Tensor:
        return self.policy.score(packed, self.train.temperature)[0]

    def _update(self, rows: Sequence[Row], rates: StepRates, allow_update: AllowUpdate) -> Metrics:
        """Train on one mini-batch: one critic step and one policy step."""
        lengths_N = torch.tensor([len(row.positions_S) for row in rows], dtype=torch.float64)
        weights_N = token_weights(lengths_N, self.algorithm.normalise, self.algorithm.constant)
        weighted = [
            row.with_columns(**{WEIGHT: row.columns[WEIGHT] * weight})
            for row, weight in zip(rows, weights_N.tolist(), strict=True)
            if len(row.positions_S)
        ]
        self.token_log.set_weights(weighted)
        metrics: Metrics = {}
        if self.critic is not None and weighted:
            metrics |= self._descend(weighted, self.critic.optimiser, self._value_loss, rates.critic, isfinite)
            metrics = {name.replace("policy/", "critic/"): value for name, value in metrics.items()}
        moving = [] if rates.critic_only else [row for row in weighted if self._has_gradient(row)]
        if moving:
            metrics |= self._descend(
                moving, self.optimiser, lambda packed: self._policy_loss(packed, rates), rates.policy, allow_update
            )
            self.token_log.finish_update(moving, self.ranks)
        return metrics

    def _descend(
        self,
        rows: Sequence[Row],
        optimiser: Optimiser,
        loss_of: Callable[[Pack], tuple[Tensor, Mapping[str, Tensor]]],
        learning_rate: float,
        allow_update: AllowUpdate,
    ) -> Metrics:
        """Accumulate the gradients of all packs, then step; metrics stay on the device until the end."""
        optimiser.zero()
        sums: dict[str, Tensor] = {}
        with self.timer.time("train"):
            for packed in rank_packs(rows, self.train.pack_tokens, self.policy.device, self.ranks):
                self.timer.count("train/tokens", len(packed.ids_N))
                value, metrics = loss_of(packed)
                value.backward()
                for name, each in {**metrics, "loss": value.detach()}.items():
                    sums[name] = sums[name] + each if name in sums else each
            # One read from the device for all metrics.
            mine = dict(zip(sums, torch.stack([each.float() for each in sums.values()]).tolist(), strict=True))
            every = [theirs for (theirs,) in self.ranks.gather([mine], "the sums of an update")]
            totals = {name: sum(theirs[name] for theirs in every) for name in mine}
        with self.timer.time("optimiser"):
            norm = optimiser.norm()
            if allow_update(norm):
                optimiser.step(learning_rate, self.train.gradient_clip)
        weight, summed_loss = totals.pop(WEIGHT), totals.pop("loss")
        means = {f"policy/{name}": total / weight for name, total in totals.items()}
        return {**means, "policy/loss": summed_loss, "policy/gradient_norm": norm}

    def _has_gradient(self, row: Row) -> bool:
        """Whether a row can change the weights.

        A mini-batch without such a row is skipped: the optimiser would only follow its momentum.
        """
        settings = self.algorithm
        if settings.kl.place == "loss" or settings.entropy > 0 or settings.loss not in loss.LOSSES:
            return True
        advantage_S = row.columns["advantage"] * row.columns.get("correction", torch.ones(()))
        return bool((advantage_S > 0 if settings.negative_weight == 0 else advantage_S != 0).any())

    def _policy_loss(self, packed: Pack, rates: StepRates) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the weighted loss of a pack and the weighted sum of each metric."""
        settings, columns = self.algorithm, packed.columns
        logprob_T, entropy_T = self.policy.score(packed, self.train.temperature)
        self.token_log.add_ratios(packed, logprob_T - columns["old"])
        bounds = Bounds(settings.clip_low, settings.clip_high, settings.clip_dual, settings.negative_weight)
        sampled = Sampled(logprob_T, columns["old"], columns["advantage"], packed.row_T)
        tokens = objective.policy_loss(settings, sampled, bounds)
        value_T = tokens.value_T * columns["correction"] if "correction" in columns else tokens.value_T
        k3_T = kl.k3(columns["old"], logprob_T.detach())
        metrics = {**tokens.metrics, "k3": k3_T, "entropy": entropy_T, WEIGHT: torch.ones_like(entropy_T)}
        if settings.entropy:
            value_T = value_T - settings.entropy * entropy_T
        if self.reference is not None:
            estimator = kl.ESTIMATORS[settings.kl.resolved_estimator]
            kl_T = estimator(logprob_T, columns["reference"])
            # The adaptive coefficient reads the KL before the first update.
            metrics["kl"] = kl_T if self.train.updates == 1 else estimator(columns["old"], columns["reference"])
            if settings.kl.place == "loss":
                value_T = value_T + rates.kl * kl_T
        return (columns[WEIGHT] * value_T).sum(), _weighted_sums(columns[WEIGHT], metrics)

    def _value_loss(self, packed: Pack) -> tuple[Tensor, Mapping[str, Tensor]]:
        assert self.critic is not None  # noqa: S101  only called with a critic
        columns = packed.columns
        values_T, clip = self.critic.values(packed), self.algorithm.critic.clip
        tokens = clipped_value(values_T, columns["value"], columns["return"], clip)
        metrics = {**tokens.metrics, WEIGHT: torch.ones_like(columns["value"])}
        return (columns[WEIGHT] * tokens.value_T).sum(), _weighted_sums(columns[WEIGHT], metrics)


def _row(trajectory: Trajectory, sampled_only: bool) -> Row:
    """Convert a trajectory to a row that scores its sampled tokens, or all tokens after the prompt."""
    # numpy reads Python numbers several times faster than torch.
    ids_L = torch.from_numpy(np.array(trajectory.ids, dtype=np.int64))
    sampled_L = torch.from_numpy(np.array(trajectory.sampled, dtype=np.bool_))
    if not sampled_only:
        sampled_L = sampled_L.cumsum(0) > 0  # retrieved text is trained on as well, but not the prompt
    positions_S = sampled_L.nonzero()[:, 0]
    columns = {WEIGHT: torch.ones(len(positions_S))}
    return Row(ids_L, positions_S, columns | ({"rollout": torch.tensor(trajectory.logprobs)} if sampled_only else {}))


def _engine_drift(rows: Sequence[Row], updates: Sequence[Metrics], recomputed: bool) -> Metrics:
    """Estimate the KL between the engine's and the trainer's log-probabilities before the first update."""
    if not recomputed:
        found = updates[0].get("policy/k3") if updates else None
        return {} if found is None else {"parity/k3": found}
    pairs = [(row.columns["old"], row.columns["rollout"]) for row in rows if "rollout" in row.columns]
    k3_T = torch.cat([kl.k3(rollout, old) for old, rollout in pairs]) if pairs else torch.empty(0)
    return {"parity/k3": float(k3_T.mean())} if len(k3_T) else {}


def _weighted_sums(weight_T: Tensor, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: (weight_T * each.detach()).sum() for name, each in metrics.items()}
