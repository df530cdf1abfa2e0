"""Credit assignment: convert the rewards of trajectories to an advantage for each trained token.

A trajectory has one reward, baseline and KL penalty, however many segments hold its tokens.

Suffixes: N trajectories, S trained tokens of one trajectory, T trained tokens of all of them, K turns.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sleuth.algorithms import gae, kl, tree
from sleuth.algorithms.advantage import penalise_overlong, whiten
from sleuth.config.algorithm import AlgorithmConfig
from sleuth.records import Group, StopReason, Trajectory
from sleuth.train import objective
from sleuth.train.experience import Experience


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
    longest = (max((len(each.ids) for each in trajectory.segments), default=0) for trajectory in batch.trajectories)
    lengths_N = torch.tensor(list(longest))
    return penalise_overlong(batch.rewards_N, lengths_N, context, algorithm.overlong_tokens)


def is_trained_on(trajectory: Trajectory, algorithm: AlgorithmConfig) -> bool:
    """Whether the loss includes the trajectory; an excluded one still counts in the group baseline."""
    return algorithm.overlong != "filter" or trajectory.stop is not StopReason.OUT_OF_TOKENS


def attach_turn_rewards(experiences: Sequence[Experience], batch: RewardBatch) -> list[Experience]:
    """Add the column turn_reward if the batch has turn rewards, each at the last trained token of its turn.

    The reward of a turn without trained tokens counts at the last one before it.
    """
    if not any(batch.turns):
        return list(experiences)
    attached = []
    for experience, turns in zip(experiences, batch.turns, strict=True):
        rewards_K, order_S = torch.tensor(turns, dtype=torch.float32), experience.call_order
        last_K = torch.searchsorted(experience.turn_S[order_S], torch.arange(len(turns)), right=True) - 1
        paid_K = last_K >= 0
        paid_S = torch.zeros(len(experience)).index_add(0, order_S[last_K[paid_K]], rewards_K[paid_K])
        earlier = float(rewards_K[~paid_K].sum())
        attached.append(replace(experience.with_columns(turn_reward=paid_S), earlier=earlier))
    return attached


def attach_advantages(
    experiences: Sequence[Experience],
    rewards_N: Tensor,
    groups_N: Tensor,
    algorithm: AlgorithmConfig,
    kl_coefficient: float,
) -> list[Experience]:
    """Add the column advantage and, with a critic, the column return."""
    penalised = algorithm.kl.place == "reward"
    divergence = [torch.zeros(len(each)) for each in experiences]
    if penalised:
        estimator = kl.ESTIMATORS[algorithm.kl.resolved_estimator]
        divergence = [estimator(each.columns["old"], each.columns["reference"]) for each in experiences]
    if algorithm.advantage == "gae":
        return _attach_gae(experiences, rewards_N, divergence, algorithm, kl_coefficient)
    sums_N = torch.stack([each_S.sum() for each_S in divergence])
    net_N = kl.subtract_penalty(rewards_N, sums_N, kl_coefficient) if penalised else rewards_N
    trees_N = tree_numbers(experiences)
    advantages_N = objective.advantages(algorithm, net_N, groups_N, trees_N)
    tokens = spread_over_tokens(experiences, advantages_N, groups_N)
    if experiences and "turn_reward" in experiences[0].columns:
        # Reward-to-go: a token is not credited for earlier turns. The baseline is still computed per trajectory.
        for index, scale in enumerate(objective.divisor(algorithm, net_N, groups_N, trees_N)):
            tokens[index] = tokens[index] - _paid_before(experiences[index]) / scale
    return [each.with_columns(advantage=value_S) for each, value_S in zip(experiences, tokens, strict=True)]


def rewards_to_go(experiences: Sequence[Experience], rewards_N: Tensor) -> list[Tensor]:
    """Return for each token what its trajectory earned from the token's turn on."""
    paid = [_paid_before(each) if "turn_reward" in each.columns else torch.zeros(len(each)) for each in experiences]
    return [reward - paid_S for reward, paid_S in zip(rewards_N, paid, strict=True)]


def tree_numbers(experiences: Sequence[Experience]) -> Tensor | None:
    """Return the number of each trajectory's tree within its group; None without trees."""
    branches = [each.trajectory.branch for each in experiences]
    trees = [each.tree for each in branches if each is not None]
    return torch.tensor(trees) if trees and len(trees) == len(branches) else None


def spread_over_tokens(experiences: Sequence[Experience], values_N: Tensor, groups_N: Tensor) -> list[Tensor]:
    """Give each token the value of its trajectory; in a tree, the mean value of all leaves that contain the token."""
    tokens = [value.expand(len(each)).float() for each, value in zip(experiences, values_N, strict=True)]
    indices = {
        (group, each.trajectory.sample): index
        for index, (group, each) in enumerate(zip(groups_N.tolist(), experiences, strict=True))
    }
    branches: dict[int, list[tuple[int, int]]] = defaultdict(list)
    parents: list[int | None] = []
    for index, (group, each) in enumerate(zip(groups_N.tolist(), experiences, strict=True)):
        branch = each.trajectory.branch
        # The reward of the parent may have failed: then its tokens train nowhere.
        parents.append(None if branch is None or branch.parent is None else indices.get((group, branch.parent)))
        if branch is not None and (parent := parents[-1]) is not None:
            branches[parent].append((index, branch.shared))
    if not branches:
        return tokens
    sums_N, counts_N = tree.subtree_sums(values_N.double(), parents)
    for parent, found in branches.items():
        if not experiences[parent].rows:
            continue
        below, shared = (list(each) for each in zip(*found, strict=True))
        (row,) = experiences[parent].rows
        call = sums_N[below], counts_N[below], torch.tensor(shared), row.positions_S
        tokens[parent] = tree.leaf_means(values_N[parent].double(), *call).float()
    return tokens


def _paid_before(experience: Experience) -> Tensor:
    """The sum of the turn rewards before each token."""
    order_S = experience.call_order
    paid_S = experience.columns["turn_reward"][order_S]
    before_S = torch.empty_like(paid_S)
    before_S[order_S] = paid_S.cumsum(0) - paid_S + experience.earlier
    return before_S


def _attach_gae(
    experiences: Sequence[Experience],
    rewards_N: Tensor,
    divergence: Sequence[Tensor],
    algorithm: AlgorithmConfig,
    kl_coefficient: float,
) -> list[Experience]:
    """Attach GAE advantages in call order: a turn reward counts at the end of its turn, the rest at the last token."""
    orders = [each.call_order for each in experiences]
    token_rewards = [-kl_coefficient * each_S[order_S] for each_S, order_S in zip(divergence, orders, strict=True)]
    for experience, order_S, each_S, reward in zip(experiences, orders, token_rewards, rewards_N, strict=True):
        paid_S = experience.columns.get("turn_reward", torch.zeros(len(experience)))[order_S]
        each_S += paid_S
        each_S[-1:] += reward - paid_S.sum() - experience.earlier
    lengths = [len(each) for each in experiences]
    values_T = torch.cat([each.columns["value"][order_S] for each, order_S in zip(experiences, orders, strict=True)])
    rewards_T, critic = torch.cat(token_rewards), algorithm.critic
    advantages_T, returns_T = gae.gae(rewards_T, values_T, torch.tensor(lengths), critic.gamma, critic.lam)
    parts = zip(experiences, orders, whiten(advantages_T).split(lengths), returns_T.split(lengths), strict=True)
    return [
        each.with_columns(**{"advantage": advantage_S[order_S.argsort()], "return": return_S[order_S.argsort()]})
        for each, order_S, advantage_S, return_S in parts
    ]
