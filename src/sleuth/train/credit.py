"""Credit: from the rewards of trajectories to the advantage of each of their scored tokens.

Suffixes: N trajectories, S scored tokens of one, T those of all, one trajectory after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sleuth.algorithms import advantage, gae, kl
from sleuth.algorithms.advantage import whiten
from sleuth.config.algorithm import AlgorithmConfig
from sleuth.records import StopReason, Trajectory
from sleuth.train import objective
from sleuth.train.packing import Row


@dataclass(frozen=True, slots=True)
class Paid:
    """The trajectories of a step with their rewards, and the group of each."""

    trajectories: Sequence[Trajectory]
    rewards_N: Tensor
    keys_N: Tensor


def shaped(paid: Paid, algorithm: AlgorithmConfig, context: int) -> Tensor:
    """The rewards, less what coming near the end of the context costs where that is asked for."""
    if algorithm.overlong != "shape":
        return paid.rewards_N
    lengths_N = torch.tensor([len(each.ids) for each in paid.trajectories])
    return advantage.penalise_overlong(paid.rewards_N, lengths_N, context, algorithm.overlong_tokens)


def heard(trajectory: Trajectory, algorithm: AlgorithmConfig) -> bool:
    """Whether the loss sees the trajectory; one that is left out is still compared with the others."""
    return algorithm.overlong != "filter" or trajectory.stop is not StopReason.OUT_OF_TOKENS


def credited(
    rows: Sequence[Row], rewards_N: Tensor, keys_N: Tensor, algorithm: AlgorithmConfig, coefficient: float
) -> list[Row]:
    """The rows with the column advantage; with a critic also the column return."""
    charged = algorithm.kl.place == "reward"
    divergence = [_divergence(row, algorithm) if charged else torch.zeros(len(row.places_S)) for row in rows]
    if algorithm.advantage == "gae":
        return _by_critic(rows, rewards_N, divergence, algorithm, coefficient)
    sums_N = torch.stack([each.sum() for each in divergence])
    charged_N = kl.subtract_penalty(rewards_N, sums_N, coefficient) if charged else rewards_N
    advantages_N = objective.advantages(algorithm, charged_N, keys_N)
    return [
        row.with_columns(advantage=each.expand(len(row.places_S)).float())
        for row, each in zip(rows, advantages_N, strict=True)
    ]


def _by_critic(
    rows: Sequence[Row], rewards_N: Tensor, divergence: Sequence[Tensor], algorithm: AlgorithmConfig, coefficient: float
) -> list[Row]:
    """The reward comes with the last sampled token, the distance to the reference is charged where it arises."""
    earned = [-coefficient * each for each in divergence]
    for each, reward in zip(earned, rewards_N, strict=True):
        each[-1:] += reward
    lengths_N = torch.tensor([len(row.places_S) for row in rows])
    values_T = torch.cat([row.columns["value"] for row in rows])
    settings = algorithm.critic
    advantages_T, returns_T = gae.gae(torch.cat(earned), values_T, lengths_N, settings.gamma, settings.lam)
    parts = zip(whiten(advantages_T).split(lengths_N.tolist()), returns_T.split(lengths_N.tolist()), strict=True)
    return [
        row.with_columns(**{"advantage": advantage_S, "return": return_S})
        for row, (advantage_S, return_S) in zip(rows, parts, strict=True)
    ]


def _divergence(row: Row, algorithm: AlgorithmConfig) -> Tensor:
    return kl.ESTIMATORS[algorithm.kl.resolved_estimator](row.columns["old"], row.columns["reference"])
