"""Credit assignment: convert the rewards of trajectories to an advantage for each scored token.

Suffixes: N trajectories, S scored tokens of one trajectory, T scored tokens of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sleuth.algorithms import gae, kl
from sleuth.algorithms.advantage import divisor, penalise_overlong, whiten
from sleuth.config.algorithm import AlgorithmConfig
from sleuth.model.packing import Row
from sleuth.records import Group, StopReason, Trajectory
from sleuth.train import objective


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """The trajectories of a step with their returns; `groups_N` holds the group number of each trajectory.

    `turns` holds the rewards per turn, which the return includes; empty for trajectories without turn rewards.
    """

    trajectories: Sequence[Trajectory]
    rewards_N: Tensor
    groups_N: Tensor
    turns: Sequence[Sequence[float]] = ()

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "RewardBatch":
        return cls(
            [trajectory for group in groups for trajectory in group.trajectories],
            # An imported reward function may return integers, which torch cannot average.
            torch.tensor([score.episode_return for group in groups for score in group.scores], dtype=torch.float32),
            torch.tensor([number for number, group in enumerate(groups) for _ in group.trajectories]),
            [score.turns for group in groups for score in group.scores],
        )


def shape_rewards(batch: RewardBatch, algorithm: AlgorithmConfig, context: int) -> Tensor:
    """Return the rewards, minus a penalty near the context limit if `algorithm.overlong = "shape"`."""
    if algorithm.overlong != "shape":
        return batch.rewards_N
    lengths_N = torch.tensor([len(trajectory.ids) for trajectory in batch.trajectories])
    return penalise_overlong(batch.rewards_N, lengths_N, context, algorithm.overlong_tokens)


def is_trained_on(trajectory: Trajectory, algorithm: AlgorithmConfig) -> bool:
    """Whether the loss includes the trajectory; an excluded one still counts in the group baseline."""
    return algorithm.overlong != "filter" or trajectory.stop is not StopReason.OUT_OF_TOKENS


def attach_turn_rewards(rows: Sequence[Row], batch: RewardBatch) -> list[Row]:
    """Add the column turn_reward if the batch has turn rewards, each at the last scored token of its turn."""
    if not any(batch.turns):
        return list(rows)
    attached = []
    for row, trajectory, turns in zip(rows, batch.trajectories, batch.turns, strict=True):
        sampled_L = torch.tensor(trajectory.sampled)
        turn_L = (sampled_L & ~sampled_L.roll(1)).cumsum(0) - 1
        turn_S = turn_L[row.positions_S]
        is_last_S = torch.cat([turn_S[1:] != turn_S[:-1], torch.ones(min(1, len(turn_S)), dtype=torch.bool)])
        rewards = torch.tensor(turns) if turns else torch.zeros(int(turn_L[-1]) + 1)
        attached.append(row.with_columns(turn_reward=torch.where(is_last_S, rewards[turn_S], 0.0)))
    return attached


def attach_advantages(
    rows: Sequence[Row], rewards_N: Tensor, groups_N: Tensor, algorithm: AlgorithmConfig, kl_coefficient: float
) -> list[Row]:
    """Add the column advantage and, with a critic, the column return."""
    penalised = algorithm.kl.place == "reward"
    divergence = [torch.zeros(len(row.positions_S)) for row in rows]
    if penalised:
        estimator = kl.ESTIMATORS[algorithm.kl.resolved_estimator]
        divergence = [estimator(row.columns["old"], row.columns["reference"]) for row in rows]
    if algorithm.advantage == "gae":
        return _attach_gae(rows, rewards_N, divergence, algorithm, kl_coefficient)
    sums_N = torch.stack([each_S.sum() for each_S in divergence])
    net_N = kl.subtract_penalty(rewards_N, sums_N, kl_coefficient) if penalised else rewards_N
    advantages_N = objective.advantages(algorithm, net_N, groups_N)
    tokens = [each.expand(len(row.positions_S)).float() for row, each in zip(rows, advantages_N, strict=True)]
    if rows and "turn_reward" in rows[0].columns:
        # Reward-to-go: a token is not credited for earlier turns. The baseline is still computed per trajectory.
        for index, scale in enumerate(divisor(algorithm.advantage, net_N, groups_N)):
            paid_S = rows[index].columns["turn_reward"]
            tokens[index] = tokens[index] - (paid_S.cumsum(0) - paid_S) / scale
    return [row.with_columns(advantage=each_S) for row, each_S in zip(rows, tokens, strict=True)]


def _attach_gae(
    rows: Sequence[Row],
    rewards_N: Tensor,
    divergence: Sequence[Tensor],
    algorithm: AlgorithmConfig,
    kl_coefficient: float,
) -> list[Row]:
    """Attach GAE advantages: each turn reward counts at the end of its turn, the rest at the last token."""
    token_rewards = [-kl_coefficient * each_S for each_S in divergence]
    for row, each_S, reward in zip(rows, token_rewards, rewards_N, strict=True):
        paid_S = row.columns.get("turn_reward", torch.zeros(()))
        each_S += paid_S
        each_S[-1:] += reward - paid_S.sum()
    lengths = [len(row.positions_S) for row in rows]
    values_T = torch.cat([row.columns["value"] for row in rows])
    rewards_T, critic = torch.cat(token_rewards), algorithm.critic
    advantages_T, returns_T = gae.gae(rewards_T, values_T, torch.tensor(lengths), critic.gamma, critic.lam)
    parts = zip(whiten(advantages_T).split(lengths), returns_T.split(lengths), strict=True)
    return [
        row.with_columns(**{"advantage": advantage_S, "return": return_S})
        for row, (advantage_S, return_S) in zip(rows, parts, strict=True)
    ]
