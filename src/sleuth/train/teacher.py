"""Distillation-guided policy optimisation (DGPO, arXiv 2508.20324).

A KL penalty pulls failed episodes towards a teacher.

Suffixes: N trajectories, S trained tokens of a trajectory.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sleuth.algorithms import kl
from sleuth.config.algorithm import TeacherConfig
from sleuth.train.experience import Experience

FAILED, TEACHER = "failed", "teacher"  # columns: 1 for the tokens of a failed episode; the teacher's logprob
Score = Callable[[Sequence[Experience]], Sequence[Tensor]]


def guide(
    experiences: Sequence[Experience], rewards_N: Tensor, returns_N: Tensor, settings: TeacherConfig, score: Score
) -> tuple[list[Experience], Tensor, dict[str, float]]:
    """Penalise the KL from the teacher in episodes whose return is too low; return experiences, rewards and metrics.

    In the reward, the KL of each token is charged at that token, as a turn reward is. For the loss, columns are
    attached. `score` returns the teacher's logprobs; successful episodes are not scored.
    """
    failed = [value < settings.reward_below for value in returns_N.tolist()]
    guided = [each for each, is_failed in zip(experiences, failed, strict=True) if is_failed and len(each)]
    scored = {id(each): value_S for each, value_S in zip(guided, score(guided) if guided else (), strict=True)}
    teacher = [scored.get(id(each), each.columns["old"]) for each in experiences]
    divergence = [kl.k1(each.columns["old"], value_S) for each, value_S in zip(experiences, teacher, strict=True)]
    metrics = {"teacher/failed": sum(failed) / len(failed)} if failed else {}
    if tokens := sum(map(len, guided)):
        metrics["teacher/kl"] = float(torch.stack([each_S.sum() for each_S in divergence]).sum()) / tokens
    if settings.place == "loss":
        flags = [torch.full((len(each),), float(id(each) in scored)) for each in experiences]
        columns = zip(experiences, teacher, flags, strict=True)
        attached = [each.with_columns(**{TEACHER: value_S, FAILED: flag_S}) for each, value_S, flag_S in columns]
        return attached, rewards_N, metrics
    charged = [
        each.with_columns(turn_reward=_turn_rewards(each) - settings.coefficient * value_S)
        for each, value_S in zip(experiences, divergence, strict=True)
    ]
    sums_N = torch.tensor([float(value_S.sum()) for value_S in divergence])
    return charged, kl.subtract_penalty(rewards_N, sums_N, settings.coefficient), metrics


def _turn_rewards(experience: Experience) -> Tensor:
    return experience.columns.get("turn_reward", torch.zeros(len(experience)))
