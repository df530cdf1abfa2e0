"""Credit assignment: from the rewards of trajectories to an advantage for each of their scored tokens.

Suffixes: N trajectories, S scored tokens of one trajectory, T scored tokens of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sleuth.algorithms import gae, kl
from sleuth.algorithms.advantage import penalise_overlong, whiten
from sleuth.config.algorithm import AlgorithmConfig
from sleuth.model.packing import Row
from sleuth.records import Group, StopReason, Trajectory
from sleuth.train import objective


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """The trajectories of a step with their rewards; `groups_N` numbers the group of each."""

    trajectories: Sequence[Trajectory]
    rewards_N: Tensor
    groups_N: Tensor

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "RewardBatch":
        return cls(
            [trajectory for group in groups for trajectory in group.trajectories],
            # An imported reward function may return integers, which torch cannot average.
            torch.tensor([score.total for group in groups for score in group.scores], dtype=torch.float32),
            torch.tensor([number for number, group in enumerate(groups) for _ in group.trajectories]),
        )


def shape_rewards(batch: RewardBatch, algorithm: AlgorithmConfig, context: int) -> Tensor:
    """The rewards, minus the penalty of `algorithm.overlong = "shape"` near the context limit."""
    if algorithm.overlong != "shape":
        return batch.rewards_N
    lengths_N = torch.tensor([len(trajectory.ids) for trajectory in batch.trajectories])
    return penalise_overlong(batch.rewards_N, lengths_N, context, algorithm.overlong_tokens)


def is_trained_on(trajectory: Trajectory, algorithm: AlgorithmConfig) -> bool:
    """Whether the loss includes the trajectory; an excluded one still counts in the group baseline."""
    return algorithm.overlong != "filter" or trajectory.stop is not StopReason.OUT_OF_TOKENS


def attach_advantages(
    rows: Sequence[Row], rewards_N: Tensor, groups_N: Tensor, algorithm: AlgorithmConfig, kl_coefficient: float
) -> list[Row]:
    """Add the column advantage; with a critic also the column return."""
    penalised = algorithm.kl.place == "reward"
    if penalised:
        estimator = kl.ESTIMATORS[algorithm.kl.resolved_estimator]
        divergence = [estimator(row.columns["old"], row.columns["reference"]) for row in rows]
    else:
        divergence = [torch.zeros(len(row.positions_S)) for row in rows]
    if algorithm.advantage == "gae":
        return _attach_gae(rows, rewards_N, divergence, algorithm, kl_coefficient)
    sums_N = torch.stack([each_S.sum() for each_S in divergence])
    net_N = kl.subtract_penalty(rewards_N, sums_N, kl_coefficient) if penalised else rewards_N
    advantages_N = objective.advantages(algorithm, net_N, groups_N)
    return [
        row.with_columns(advantage=advantage.expand(len(row.positions_S)).float())
        for row, advantage in zip(rows, advantages_N, strict=True)
    ]


def _attach_gae(
    rows: Sequence[Row],
    rewards_N: Tensor,
    divergence: Sequence[Tensor],
    algorithm: AlgorithmConfig,
    kl_coefficient: float,
) -> list[Row]:
    """The reward is paid at the last sampled token, the KL penalty at the token where it arises."""
    token_rewards = [-kl_coefficient * each_S for each_S in divergence]
    for each_S, reward in zip(token_rewards, rewards_N, strict=True):
        each_S[-1:] += reward
    lengths = [len(row.positions_S) for row in rows]
    values_T = torch.cat([row.columns["value"] for row in rows])
    settings = algorithm.critic
    advantages_T, returns_T = gae.gae(
        torch.cat(token_rewards), values_T, torch.tensor(lengths), settings.gamma, settings.lam
    )
    parts = zip(whiten(advantages_T).split(lengths), returns_T.split(lengths), strict=True)
    return [
        row.with_columns(**{"advantage": advantage_S, "return": return_S})
        for row, (advantage_S, return_S) in zip(rows, parts, strict=True)
    ]
