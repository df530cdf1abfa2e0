"""One training step: update the weights on groups of scored trajectories.

Suffixes: N trajectories, S trained tokens of a trajectory, T scored tokens of a pack.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from math import isfinite

import torch
from torch import Tensor

from sleuth.algorithms import kl, likelihood, loss
from sleuth.algorithms.gae import clipped_value
from sleuth.algorithms.loss import Bounds, Sampled
from sleuth.algorithms.normalise import token_weights
from sleuth.config.algorithm import AlgorithmConfig, CriticConfig
from sleuth.config.train import TrainConfig
from sleuth.config.tree import Config
from sleuth.model.packing import WEIGHT, Pack, Row
from sleuth.model.policy import Policy, Reference
from sleuth.records import Group
from sleuth.train import objective
from sleuth.train.credit import (
    RewardBatch,
    attach_advantages,
    attach_turn_rewards,
    is_trained_on,
    rewards_to_go,
    shape_rewards,
)
from sleuth.train.experience import Experience, build_experiences, experience_rows
from sleuth.train.footprint import default_pack_tokens
from sleuth.train.information_gain import InformationGain
from sleuth.train.metrics import Metrics, Timer, TokenLog
from sleuth.train.models import Critic, load_critic, load_reference, load_teacher, load_trained_policy
from sleuth.train.optimiser import Optimiser
from sleuth.train.ranks import ALONE, Ranks, require_supported
from sleuth.train.sharding import rank_packs, score_rows
from sleuth.train.step_groups import attach_step_advantages
from sleuth.train.teacher import FAILED, TEACHER, guide

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
    """The policy and its optimiser, with a critic, a reference and a teacher if the algorithm needs them.

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
    teacher: Reference | None = None
    information_gain: InformationGain | None = None

    def __post_init__(self) -> None:
        objective.require(self.algorithm)  # reject an unknown name before the first episode

    @classmethod
    def build(cls, config: Config, ranks: Ranks) -> "Learner":
        """Load the models of a run and create the optimiser."""
        require_supported(config, ranks.world)
        policy = load_trained_policy(config, ranks)
        reference = load_reference(config, policy, ranks)
        critic = load_critic(config, policy, ranks)
        teacher = load_teacher(config, policy, ranks)
        optimiser = Optimiser.build(policy.model.named_parameters(), config.train, config.train.learning_rate)
        context = config.agent.context_tokens
        # The same packs on every rank, also if their GPUs differ.
        sizes = ranks.gather([_pack_tokens(config.train, policy)], "the size of the packs")
        pack = min(size for (size,) in sizes)
        settings = config.algorithm, config.train.model_copy(update={"pack_tokens": pack})
        return cls(policy, optimiser, *settings, context, reference, critic, ranks, teacher=teacher)

    @property
    def pack_tokens(self) -> int:
        return _pack_tokens(self.train, self.policy)

    @property
    def critic_optimiser(self) -> Optimiser | None:
        return None if self.critic is None else self.critic.optimiser

    def learn(self, groups: Sequence[Group], rates: StepRates, allow_update: AllowUpdate, recompute: bool) -> Metrics:
        """Update the weights on the groups and return metrics.

        With `recompute`, the trainer recomputes the old log-probabilities instead of using the engine's.
        """
        batch = RewardBatch.of(groups)
        experiences = build_experiences(
            batch.trajectories,
            self.train.temperature,
            roles=self.train.roles,
            sampled_only=self.algorithm.origin_mask,
        )
        recompute = recompute or self.algorithm.recomputes
        with self.timer.time("score"):
            if recompute:
                experiences = self._attach("old", experiences, self._policy_logprobs)
            else:
                experiences = [each.with_columns(old=each.columns["rollout"]) for each in experiences]
            experiences, metrics = self._attach_corrections(experiences)
            if reference := self.reference:
                experiences = self._attach(
                    "reference", experiences, lambda pack: reference.score(pack, self.train.temperature)[0]
                )
            if self.critic is not None:
                experiences = self._attach("value", experiences, self.critic.values)
        returns_N = batch.rewards_N  # before information gain: whether an episode failed (DGPO)
        if self.information_gain is not None:
            with self.timer.time("information_gain"):
                score = partial(self._score_rows, score=self._policy_logprobs)
                batch, gains = self.information_gain.add(batch, score)
            metrics = {**metrics, **gains}
        rewards_N = shape_rewards(batch, self.algorithm, self.context)
        experiences = attach_turn_rewards(experiences, batch)
        if self.teacher is not None:
            settings = self.algorithm.teacher
            experiences, rewards_N, guided = guide(experiences, rewards_N, returns_N, settings, self._teacher_logprobs)
            metrics |= guided
        experiences = attach_advantages(experiences, rewards_N, batch.groups_N, self.algorithm, rates.kl)
        if self.algorithm.likelihood.penalty != "none":
            experiences = [each.with_columns(turn=each.turn_S) for each in experiences]
        if weight := self.algorithm.step_groups:
            call = rewards_to_go(experiences, rewards_N), batch.groups_N, self.algorithm.advantage, weight
            experiences, compared = attach_step_advantages(experiences, *call)
            metrics = {**metrics, **compared}
        self.token_log.start(experiences)
        trained = [each for each in experiences if is_trained_on(each.trajectory, self.algorithm)]
        # Nearly equal consecutive mini-batches, none of them empty.
        count = min(self.train.updates, len(trained))
        bounds = pairwise(len(trained) * part // count for part in range(count + 1)) if count else ()
        updates = [self._update(trained[low:high], rates, allow_update) for low, high in bounds]
        drift = _engine_drift(experiences, updates, recompute)
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
        sampled = [each for group in groups for each in group.trajectories if each.logprobs]
        if not sampled:
            return ""
        shortest = build_experiences([min(sampled, key=lambda each: len(each.ids))], self.train.temperature)
        with self.timer.time("score"):
            (logprob_S,) = self._score(shortest, self._policy_logprobs)
        return "" if bool(logprob_S.isfinite().all()) else "the logprobs of the policy"

    def _attach_corrections(self, experiences: Sequence[Experience]) -> tuple[list[Experience], Metrics]:
        """Add the column correction: the off-policy weight of each token."""
        settings = self.algorithm.correction
        if not settings.enabled:
            return list(experiences), {}
        lengths = [len(each) for each in experiences]
        found = objective.correct(
            settings,
            torch.cat([each.columns["old"] for each in experiences]),
            torch.cat([each.columns["rollout"] for each in experiences]),
            torch.repeat_interleave(torch.arange(len(experiences)), torch.tensor(lengths)),
        )
        parts = found.weight_T.split(lengths)
        corrected = [each.with_columns(correction=part) for each, part in zip(experiences, parts, strict=True)]
        return corrected, {f"correction/{name}": value for name, value in found.metrics.items()}

    def _attach(
        self, column: str, experiences: Sequence[Experience], score: Callable[[Pack], Tensor]
    ) -> list[Experience]:
        values = self._score(experiences, score)
        return [each.with_columns(**{column: value_S}) for each, value_S in zip(experiences, values, strict=True)]

    def _score(self, experiences: Sequence[Experience], score: Callable[[Pack], Tensor]) -> list[Tensor]:
        values = iter(self._score_rows(experience_rows(experiences), score))
        return [each.join(list(islice(values, len(each.rows)))) for each in experiences]

    def _score_rows(self, rows: Sequence[Row], score: Callable[[Pack], Tensor]) -> list[Tensor]:
        return score_rows(rows, self.pack_tokens, self.policy.device, self.ranks, score)

    def _teacher_logprobs(self, experiences: Sequence[Experience]) -> list[Tensor]:
        teacher = self.teacher
        assert teacher is not None  # noqa: S101  only called with a teacher
        with self.timer.time("score"):
            return self._score(experiences, lambda pack: teacher.score(pack, self.train.temperature)[0])

    def _policy_logprobs(self, packed: Pack) -> Tensor:
        return self.policy.score(packed, self.train.temperature)[0]

    def _update(self, experiences: Sequence[Experience], rates: StepRates, allow_update: AllowUpdate) -> Metrics:
        """Train on one mini-batch: one critic step and one policy step."""
        lengths_N = torch.tensor([len(each) for each in experiences], dtype=torch.float64)
        weights_N = token_weights(lengths_N, self.algorithm.normalise, self.algorithm.constant)
        weighted = [
            each.with_columns(**{WEIGHT: each.columns[WEIGHT] * weight})
            for each, weight in zip(experiences, weights_N.tolist(), strict=True)
            if len(each)
        ]
        self.token_log.set_weights(weighted)
        metrics: Metrics = {}
        if self.critic is not None and weighted:
            metrics |= self._descend(weighted, self.critic.optimiser, self._value_loss, rates.critic, isfinite)
            metrics = {name.replace("policy/", "critic/"): value for name, value in metrics.items()}
        moving = [] if rates.critic_only else [each for each in weighted if self._has_gradient(each)]
        if moving:
            metrics |= self._descend(
                moving, self.optimiser, lambda packed: self._policy_loss(packed, rates), rates.policy, allow_update
            )
            self.token_log.finish_update(moving, self.ranks)
        return metrics

    def _descend(
        self,
        experiences: Sequence[Experience],
        optimiser: Optimiser,
        loss_of: Callable[[Pack], tuple[Tensor, Mapping[str, Tensor]]],
        learning_rate: float,
        allow_update: AllowUpdate,
    ) -> Metrics:
        """Accumulate the gradients of all packs, then step; metrics stay on the device until the end."""
        optimiser.zero()
        rows, whole = experience_rows(experiences), self._needs_whole_trajectories()
        sums: dict[str, Tensor] = {}
        with self.timer.time("train"):
            for packed in rank_packs(rows, self.pack_tokens, self.policy.device, self.ranks, whole=whole):
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

    def _has_gradient(self, experience: Experience) -> bool:
        """Whether a trajectory can change the weights.

        A mini-batch without such a trajectory is skipped: the optimiser would only follow its momentum.
        """
        settings = self.algorithm
        if settings.trains_without_advantage or settings.loss not in loss.LOSSES:
            return True
        if settings.likelihood.penalty == "sapo" and bool((experience.columns["advantage"] > 0).any()):
            return True
        advantage_S = experience.columns["advantage"] * experience.columns.get("correction", torch.ones(()))
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
        if FAILED in columns:
            value_T = value_T + settings.teacher.coefficient * columns[FAILED] * kl.k2(logprob_T, columns[TEACHER])
        if settings.likelihood.penalty != "none":
            penalty_T = self._likelihood_penalty(packed, logprob_T)
            value_T = value_T + settings.likelihood.resolved_coefficient * penalty_T
            metrics |= {"likelihood_penalty": penalty_T, "likelihood_penalised": (penalty_T != 0).float()}
        return (columns[WEIGHT] * value_T).sum(), _weighted_sums(columns[WEIGHT], metrics)

    def _likelihood_penalty(self, packed: Pack, logprob_T: Tensor) -> Tensor:
        """Return the likelihood penalty of each token, without its coefficient."""
        settings, columns = self.algorithm.likelihood, packed.columns
        # The sampling policy's logprob: `old` is recomputed with later weights where episodes are sampled in advance.
        sampling_T = columns["rollout" if self.train.max_staleness else "old"]
        by_action = settings.level == "action"
        unit_T = likelihood.action_keys(packed.row_T, columns["turn"]) if by_action else packed.row_T
        sampled = Sampled(logprob_T, sampling_T, columns["advantage"], unit_T)
        return likelihood.PENALTIES[settings.penalty](sampled, settings.threshold)

    def _needs_whole_trajectories(self) -> bool:
        """Whether the loss of a token depends on the other tokens of its trajectory."""
        return self.algorithm.loss not in loss.TOKENWISE or self.algorithm.likelihood.level == "trajectory"

    def _value_loss(self, packed: Pack) -> tuple[Tensor, Mapping[str, Tensor]]:
        assert self.critic is not None  # noqa: S101  only called with a critic
        columns = packed.columns
        values_T, clip = self.critic.values(packed), self.algorithm.critic.clip
        tokens = clipped_value(values_T, columns["value"], columns["return"], clip)
        metrics = {**tokens.metrics, WEIGHT: torch.ones_like(columns["value"])}
        return (columns[WEIGHT] * tokens.value_T).sum(), _weighted_sums(columns[WEIGHT], metrics)


def _pack_tokens(train: TrainConfig, policy: Policy) -> int:
    device = policy.device
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    return train.pack_tokens or default_pack_tokens(policy.model.config, memory)


def _engine_drift(experiences: Sequence[Experience], updates: Sequence[Metrics], recomputed: bool) -> Metrics:
    """Estimate the KL between the engine's and the trainer's log-probabilities before the first update."""
    if not recomputed:
        found = updates[0].get("policy/k3") if updates else None
        return {} if found is None else {"parity/k3": found}
    pairs = [(each.columns["old"], each.columns["rollout"]) for each in experiences if "rollout" in each.columns]
    k3_T = torch.cat([kl.k3(rollout, old) for old, rollout in pairs]) if pairs else torch.empty(0)
    return {"parity/k3": float(k3_T.mean())} if len(k3_T) else {}


def _weighted_sums(weight_T: Tensor, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: (weight_T * each.detach()).sum() for name, each in metrics.items()}
